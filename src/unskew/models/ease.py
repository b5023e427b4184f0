"""EASE: a linear model of items by items in closed form (Steck, Embarrassingly Shallow Autoencoders for
Sparse Data, WWW 2019).

    B      = argmin ||X - X B||^2 + l2 ||B||^2  with diag(B) = 0
    P      = (X^T X + l2 I)^-1
    B_ij   = -P_ij / P_jj, and 0 on the diagonal
    score  = x_u B

    X    users x items, 1 where the user has the item in the training set
    x_u  1 for each item of the history of the request, also of items that were taken after training

What was decided: l2 is chosen on the validation set unless it is given. The matrix has the square of the
number of items, so it is no part of a stored run: the pairs of X are, and the matrix is solved from them when
it is needed. It is solved in float32 by Cholesky. Ties are broken by popularity, which also ranks the items
for an empty history.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack
from torch import Tensor

from unskew.core.config import AtLeast1, Positive, Search
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.split import Known, Split
from unskew.data.log.views import PAD
from unskew.models.base import HistoryConfig
from unskew.models.itemknn import ItemToItem, training_matrix
from unskew.nn.device import on_device

L2 = (30.0, 100.0, 300.0, 1000.0)
MATRICES = 3  # of items x items that are in memory while B is solved


class EASE(ItemToItem, name="ease", paper="Steck, Embarrassingly Shallow Autoencoders, WWW 2019"):
    """Scores candidates by a linear combination of the items of the history."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        history: Annotated[AtLeast1, Search.among(50, 200)] = 200
        """The number of past items of a user that the model reads: the newest ones."""
        l2: Positive | None = None
        """The weight of the penalty on B. By default the one that validation prefers."""
        memory: Positive = 8.0
        """The largest number of gigabytes that the matrices may take."""

    config: Config
    counts_once = True
    tried: ClassVar[dict[str, tuple[float, ...]]] = {"l2": L2}
    l2: Tensor
    pairs_2N: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, l2=L2[0])
        items = known.items.size
        if (wanted := MATRICES * 4 * items**2 / 1e9) > config.memory:
            raise BadInput(
                f"ease needs {wanted:.1f} GB for a matrix of {items:,} x {items:,} items and may take "
                f"{config.memory:g} GB (memory): give it more, or use itemknn, which is sparse"
            )
        self.register_buffer("pairs_2N", torch.zeros(2, 0, dtype=torch.int32))
        self._solved: tuple[float, NDArray[np.float32]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy solves the matrix by itself."""
        return self.__dict__ | {"_solved": None}

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *others: Any) -> None:
        if (pairs := state_dict.get(f"{prefix}pairs_2N")) is not None:
            self.pairs_2N, self._solved = torch.empty_like(pairs), None
        super()._load_from_state_dict(state_dict, prefix, *others)

    def fit_statistics(self, split: Split) -> None:
        super().fit_statistics(split)
        pairs = training_matrix(split).tocoo()
        columns = np.stack([pairs.row, pairs.col]).astype(np.int32)
        self.pairs_2N = on_device(torch.from_numpy(columns), self.popularity_I.device)
        self._solved = None

    def take_over_pairs(self, before: "EASE", items: Tensor, code_now: Tensor) -> None:
        user, item = before.pairs_2N[0], code_now.int()[before.pairs_2N[1].long()]
        self.pairs_2N = torch.stack([user, item])[:, item != PAD]
        self._solved = None

    def matrix(self) -> NDArray[np.float32]:
        """The matrix B, (items, items)."""
        l2 = float(self.l2)
        if self._solved is None or self._solved[0] != l2:
            self._solved = None  # so that no two of them are in memory
            self._solved = l2, solve(self.pairs_2N.cpu().numpy(), len(self.popularity_I), l2)
        return self._solved[1]


def solve(pairs_2N: NDArray[np.int32], items: int, l2: float) -> NDArray[np.float32]:
    """B for these pairs of users and items. Three matrices of this size are in memory at most."""
    users = int(pairs_2N[0].max(initial=-1)) + 1
    ones = np.ones(pairs_2N.shape[1], np.float32)
    matrix = sparse.csr_array((ones, (pairs_2N[0], pairs_2N[1])), shape=(users, items))
    gram = np.asfortranarray((matrix.T @ matrix).toarray())
    gram[np.diag_indices(items)] += l2
    factor, failed = lapack.spotrf(gram, lower=1, overwrite_a=1)
    inverse, failed_too = lapack.spotri(factor, lower=1, overwrite_c=1)
    if failed or failed_too:
        raise UnskewError(f"X^T X + {l2:g} I cannot be inverted in float32: try a larger l2")
    # LAPACK fills the lower half alone.
    weights: NDArray[np.float32] = np.ascontiguousarray(inverse.T)
    weights += np.tril(inverse, -1)
    weights /= -np.diag(weights).copy()
    weights[np.diag_indices(items)] = 0
    return weights
