"""Approximate lists for very large catalogues: an index proposes items, and the model scores these exactly.

From about 100,000 items on, one product with the vectors of all items takes longer than everything else. An
inverted file of faiss (extra `ann`) puts vectors that point the same way into one of about 4 sqrt(N) cells,
and looks only into the cells that are nearest to the vector of a context. How many cells these are is
chosen on some histories of the log, so that the lists have the wanted recall of the exact lists;
what they have is then measured on other histories.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, contexts
from unskew.data.log.log import LogView
from unskew.data.log.views import PAD
from unskew.models.base import MODELS, DotProduct, Recommender
from unskew.nn.device import device_of, on_device
from unskew.nn.scoring import Catalog, DotCatalog

HISTORIES = 200  # on so many the number of cells is chosen, and on so many others the recall is measured
LEAST, TIMES = 200, 10  # so many items are proposed at least, and so many times the length of the list
PER_CELL = 39  # vectors that a cell has at least on average, and that it is learned from
NEWER = 1000, 8  # beyond so many new items, and beyond this part of all items, the index is built again
TOGETHER = 50  # histories whose exact scores are held at once
FEW = 4  # where no more than this part of the items may be listed, all of them are scored
NEAR = (
    1e-5  # scores that differ by less than this fraction are equal: sums in another order differ by as much
)


@dataclass(frozen=True)
class Recall:
    """Which fraction of the exact lists the approximate ones have, measured on some histories of the log.

    fraction: of the items of the exact lists; an item with the same score as the last one counts, too.
    k: how long the lists are.
    histories: how many lists were compared.
    """

    fraction: float
    k: int
    histories: int

    def __str__(self) -> str:
        return f"recall {self.fraction:.2f} of the exact lists, measured on {self.histories:,} histories"


class Proposals:
    """The items that may be among the best of a context, and their exact scores.

    model, log: what ranks, and what it ranks.
    catalog: the catalogue of this model for this log.
    wanted: the fraction of the items of the exact lists that the approximate ones have at least. It is
        reached on the histories that the number of cells is chosen on; `recall` says what others have.
    seed: of the choice of these histories.
    """

    def __init__(
        self, model: Recommender, catalog: Catalog, log: LogView, wanted: float = 0.95, seed: int = 0
    ) -> None:
        if not 0 < wanted <= 1:
            raise BadInput(f"recall {wanted}: expected more than 0 and at most 1", field="recall")
        self.model, self.wanted = model, wanted
        self._catalog = _with_vectors(model, catalog)
        self._vectors = self._all_vectors(len(log.items))
        self.indexed = self._vectors.shape[1]
        self.cells = max(1, min(int(4 * self.indexed**0.5), self.indexed // PER_CELL))
        self._index = _build_index(self._vectors.T.contiguous().numpy(), self.cells)
        self._histories = self._sample(log, seed)
        self._newer = self._vectors[:, :0].T
        self._chosen: dict[tuple[int, bool], tuple[int, Recall]] = {}

    def fits(self, log: LogView) -> bool:
        """Whether the index can go on serving a log: it has not many more items than when it was built."""
        newer = len(log.items) - self.indexed
        return 0 <= newer <= max(NEWER[0], self.indexed // NEWER[1])

    def recall(self, k: int, include_seen: bool = False) -> Recall:
        """What lists of k items have of the exact ones."""
        return self._cells_for(k, include_seen)[1]

    def probed(self, k: int, include_seen: bool = False) -> int:
        """Into how many cells is looked for lists of k items."""
        return self._cells_for(k, include_seen)[0]

    @torch.no_grad()
    def of(
        self, context: Batch, k: int, allowed: NDArray[np.bool_], more: int = 0, include_seen: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The codes of the proposed items of each context and their exact scores, (B, N) both. The score is
        minus infinity where there is nothing to propose. Items that are newer than the index are always
        among the proposed ones, and where only a few may be proposed, all of them are.

        k: how long the lists will be.
        allowed: which items may be proposed.
        more: how many of the proposed ones may have been seen, so that as many more are needed.
        include_seen: whether the lists will hold what was seen.
        """
        state_BD, some = self._states(context), np.flatnonzero(allowed[: self.indexed])
        if len(some) <= self.indexed // FEW:
            codes = torch.from_numpy(some).expand(len(state_BD), -1)
            scores = state_BD @ self._vectors[:, some]
        else:
            # Of a part of the items, the best are in more cells.
            probed = -(-self.probed(k, include_seen) * self.indexed // len(some))
            codes, scores = self._near(state_BD, max(LEAST, TIMES * k) + more, probed, allowed)
        newer = np.arange(self.indexed, len(allowed))
        if not len(newer):
            return codes, scores
        if len(newer) != len(self._newer):
            self._newer = self._catalog.item_vectors(newer).cpu()
        of_newer = (state_BD @ self._newer.T).masked_fill(~torch.from_numpy(allowed[newer]), -torch.inf)
        codes_of_newer = torch.from_numpy(newer).expand(len(codes), -1)
        return torch.cat([codes, codes_of_newer], dim=1), torch.cat([scores, of_newer], dim=1)

    def _near(
        self, state_BD: Tensor, count: int, probed: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The codes and the scores of the best items in the nearest cells, (B, count); the code -1 and minus
        infinity where these cells have fewer."""
        faiss, more = _faiss(), dict[str, Any]()
        if allowed is not None and not allowed[: self.indexed].all():
            some = np.packbits(allowed[: self.indexed], bitorder="little")
            more = {"sel": faiss.IDSelectorBitmap(some)}
        parameters = faiss.SearchParametersIVF(nprobe=min(probed, self.cells), **more)
        nearest = self._index.search(state_BD.numpy(), min(count, self.indexed), params=parameters)[1]
        codes = torch.from_numpy(nearest)
        # The scores come from the same table as those of the exact lists.
        vectors_DBN = self._vectors[:, codes.clamp(min=0).flatten()].view(-1, *codes.shape)
        scores = torch.einsum("bd,dbn->bn", state_BD, vectors_DBN)
        return codes, scores.masked_fill(codes < 0, -torch.inf)

    @torch.no_grad()
    def _all_vectors(self, items: int) -> Tensor:
        """The vectors of all items that there are now, (D, N). A catalogue has those of new items apart."""
        table = self._catalog.vectors.detach().cpu()
        if items == table.shape[1]:
            return table
        newer = self._catalog.item_vectors(np.arange(table.shape[1], items)).cpu()
        return torch.cat([table, newer.T], dim=1)

    def _states(self, context: Batch) -> Tensor:
        dotted: Any = self._catalog.model
        read = on_device(context.truncate(dotted.history, dotted.audience), device_of(dotted))
        return dotted.context(read).cpu().contiguous()

    def _sample(self, log: LogView, seed: int) -> Batch:
        """Users of the log, now, in a random order: those of whom the model has something to say."""
        users = np.random.default_rng(seed).permutation(len(log.users))[: 4 * HISTORIES]
        for _ in range(2):
            sample = contexts(log, users, np.full(len(users), log.now), self.model.history)
            users = users[self.model.knows(sample).numpy()][: 2 * HISTORIES]
        return sample

    @torch.no_grad()
    def _cells_for(self, k: int, include_seen: bool) -> tuple[int, Recall]:
        """How many cells are looked into for lists of k items, and the recall of that."""
        if (k, include_seen) not in self._chosen:
            width, there = min(k, self.indexed), len(self._histories.user_B)
            # The histories that choose are not those that the recall is measured on, if there are two.
            choosing = measuring = self._histories
            if there > 1:
                choosing, measuring = (
                    choosing.part(slice(there // 2)),
                    measuring.part(slice(there // 2, None)),
                )
            tried = [1 << power for power in range(self.cells.bit_length()) if 1 << power < self.cells]
            fractions = self._recalls(choosing, width, tried, include_seen) if there else iter(())
            probed = next((cells for cells, fraction in fractions if fraction >= self.wanted), self.cells)
            (measured,) = self._recalls(measuring, width, [probed], include_seen)
            self._chosen[k, include_seen] = probed, Recall(measured[1], width, len(measuring.user_B))
        return self._chosen[k, include_seen]

    def _recalls(
        self, histories: Batch, k: int, tried: list[int], include_seen: bool
    ) -> Iterator[tuple[int, float]]:
        """Which fraction of the k best items of all is found in so many cells, for some numbers of cells."""
        state_BD, past_BL = self._states(histories), histories.history_BL
        row, place = torch.nonzero((past_BL != PAD) & (past_BL < self.indexed), as_tuple=True)
        last, listed = [state_BD[:0, :1]], 0
        for first in range(0, len(state_BD), TOGETHER):
            exact = state_BD[first : first + TOGETHER] @ self._vectors
            if not include_seen:
                here = (row >= first) & (row < first + TOGETHER)
                exact[row[here] - first, past_BL[row[here], place[here]]] = -torch.inf
            best = exact.topk(k).values
            last.append(torch.where(best.isfinite(), best, torch.inf).amin(1, keepdim=True))
            listed += int(best.isfinite().sum())
        last_B1 = torch.cat(last)
        for cells in tried:
            codes, scores = self._near(state_BD, k + past_BL.shape[1], cells)
            if not include_seen:
                scores = scores.masked_fill((codes[:, :, None] == past_BL[:, None]).any(2), -torch.inf)
            hits = (scores >= last_B1 - NEAR * last_B1.abs()).sum(1).clamp(max=k)
            yield cells, int(hits.sum()) / listed if listed else 1.0


def _with_vectors(model: Recommender, catalog: Catalog) -> DotCatalog:
    """The table of vectors of a catalogue. That of `debiased-NAME` is the one of NAME."""
    vectors = model.dot_catalog(catalog)
    if vectors is None:
        able = ", ".join(sorted(name for name, kind in MODELS.items() if issubclass(kind, DotProduct)))
        raise BadInput(
            f"{model.name} has no vectors of items that an index could hold: approximate lists are for "
            f"{able}, and debiased-NAME with any of them"
        )
    return vectors


def _build_index(vectors_ND: NDArray[np.float32], cells: int) -> Any:
    """An inverted file of vectors by inner product."""
    faiss = _faiss()
    width = vectors_ND.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = PER_CELL
    index.train(vectors_ND)
    index.add(vectors_ND)
    return index


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise BadInput(
            "approximate lists need the extra: pip install '.[ann]' in a clone of unskew"
        ) from None
    return faiss
