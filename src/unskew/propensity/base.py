"""What every estimator of propensities is, and the registry of them.

An estimator is registered by the definition of its class: `class Mine(Propensity, name="mine")`. Then
`propensity="mine"` names it in DEPS and in every `debiased-NAME`. An entry point of the group
`unskew.estimators` brings the estimators of another package to the command line. `check_estimator` of
`unskew.testing.estimators` says whether an estimator keeps the contract.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unskew.core.config import did_you_mean, register
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.held_out import effective_size
from unskew.data.log.log import Log
from unskew.data.log.split import Known, Split
from unskew.nn.layers import Embeddings
from unskew.nn.phases import Phase

Views = Literal["both", "item", "user"]
PropensityScale = Literal["softmax", "min-max"]

ESTIMATORS: dict[str, type["Propensity"]] = {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Needs:
    """What an estimator is built from. Whatever else it needs, it counts or fits in `fit_statistics`."""

    known: Known  # which users and items training saw: all shapes depend on this alone
    alpha: float = 0.5  # the weight of the item view
    clip: float = 0.05  # the lower bound of propensities (M)
    width: int = 64  # of embeddings and hidden states that the estimator has of its own
    layers: int = 1  # of each GRU
    scale: PropensityScale = "softmax"  # how a GRU's logits become propensities
    # The recommender's embeddings of items and of users, to be read and not to be trained. None: an estimator
    # that reads embeddings makes its own and trains them.
    tables: tuple[Embeddings, Embeddings] | None = None


class Coefficient(NamedTuple):
    """A fitted number with its standard error."""

    name: str
    value: float
    standard_error: float


class Propensity(nn.Module, ABC):
    """An estimator of P(o = 1) for each pair of a batch, and the weights that follow from it.

    A subclass must implement `item_view` and `user_view`. `unskew.testing.check_estimator` checks an
    estimator of one's own.

    Parameters
    ----------
    alpha
        The weight of the item view, from 0 to 1.
    clip
        The lower bound of propensities (M), above 0 and at most 1.
    """

    name: ClassVar[str] = ""  # by which it is registered; empty if it is not
    has_scale: ClassVar[bool] = False  # whether `Needs.scale` changes what it estimates

    def __init_subclass__(cls, *, name: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not name:
            return
        register(ESTIMATORS, name, cls, "an estimator")
        cls.name = name

    def __init__(self, alpha: float = 0.5, clip: float = 0.05) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise BadInput(f"alpha {alpha}: expected from 0 to 1", field="alpha")
        if not 0 < clip <= 1:
            raise BadInput(f"clip {clip}: expected above 0 and at most 1", field="clip")
        self.alpha, self.clip = alpha, clip

    @classmethod
    def build(cls, needs: Needs) -> "Propensity":
        """A new estimator. A class whose constructor takes more than `alpha` and `clip` overrides this.

        Parameters
        ----------
        needs
            What an estimator may be built from.

        Returns
        -------
        Propensity
            An instance of this class.
        """
        return cls(needs.alpha, needs.clip)

    def fit_statistics(self, split: Split) -> None:
        """Compute or fit what no gradient of the recommender learns, and store it in buffers. This is called
        once, before training.

        Parameters
        ----------
        split
            The split. Only its training set may be read.
        """

    def phases(self) -> tuple[Phase, ...]:
        """How the estimator's own parameters are trained by gradients; by default it has none.

        DEPS and `debiased-NAME` run these phases as Algorithm 1 does: by themselves in stage 1, and before
        the recommender in each epoch of stage 2.

        Returns
        -------
        tuple of Phase
            Together they must train every parameter that has a gradient.
        """
        return ()

    def untrained_parameter_names(self) -> set[str]:
        """The names of the parameters that have a gradient and that no phase trains.

        Returns
        -------
        set of str
            It is empty for an estimator that keeps the contract.
        """
        trained = {id(parameter) for phase in self.phases() for parameter in phase.parameters()}
        return {name for name, p in self.named_parameters() if p.requires_grad and id(p) not in trained}

    @abstractmethod
    def item_view(self, batch: Batch) -> Tensor | None:
        """The propensity of each pair in the item view, P(i, h_u).

        Parameters
        ----------
        batch
            B contexts with C candidates each. The estimator must not read its labels.

        Returns
        -------
        Tensor or None
            The probabilities, (B, C); None if the estimator has no item view.
        """

    @abstractmethod
    def user_view(self, batch: Batch) -> Tensor | None:
        """The propensity of each pair in the user view, P(u, h_i).

        Parameters
        ----------
        batch
            B contexts with C candidates each. The estimator must not read its labels.

        Returns
        -------
        Tensor or None
            The probabilities, (B, C); None if the estimator has no user view.
        """

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        """log P(o = 1) of each item at each time, independent of the user and up to a constant per time.

        Parameters
        ----------
        log
            The log. Only its events strictly before `time` may be read.
        item, time
            Item codes and times in ticks, which are broadcast against each other. Items may be new to
            training.

        Returns
        -------
        Tensor
            The logarithms, in the broadcast shape.

        Raises
        ------
        BadInput
            If the estimator has no propensity of items alone.
        """
        raise BadInput(
            f"`{self.name or type(self).__name__}` has no propensity of items alone: logit-offset and "
            "weighted-negatives need `exposure` or `power`"
        )

    @classmethod
    def knows_items(cls) -> bool:
        """Whether the estimator has a propensity of items alone (`log_exposure`).

        Returns
        -------
        bool
            The methods `logit-offset` and `weighted-negatives` need such an estimator.
        """
        return cls.log_exposure is not Propensity.log_exposure

    @classmethod
    def has_two_views(cls) -> bool:
        """Whether the estimator has an item view and a user view, which alpha weighs against each other. By
        default this follows from the annotations of `item_view` and `user_view`."""
        return None not in (signature(view).return_annotation for view in (cls.item_view, cls.user_view))

    def clipped(self, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
        """The two views, raised to at least the clip (eq. clip_prob_item, clip_prob_user).

        Parameters
        ----------
        batch
            B contexts with C candidates each.

        Returns
        -------
        tuple of (Tensor or None)
            The item view and the user view, each (B, C) or None.
        """
        views = self.item_view(batch), self.user_view(batch)
        item, user = (None if view is None else view.clamp(min=self.clip) for view in views)
        return item, user

    @torch.no_grad()
    def weights(self, batch: Batch) -> Tensor:
        """The weight of each pair: Theorem 1 with clipped propensities.

        Parameters
        ----------
        batch
            B contexts with C candidates each.

        Returns
        -------
        Tensor
            The weights, (B, C). If there is one view only, it has the full weight; without any, all weights
            are 1.
        """
        return self._combined(batch, *self.clipped(batch))

    @torch.no_grad()
    def estimates(self, batch: Batch) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Both views, exact and not clipped, and the weights that follow from them, in one pass.

        Parameters
        ----------
        batch
            B contexts with C candidates each.

        Returns
        -------
        tuple of (Tensor or None, Tensor or None, Tensor)
            The item view, the user view and the weights, each (B, C).
        """
        views = self.item_view(batch), self.user_view(batch)
        item, user = (None if view is None else view.clamp(min=self.clip) for view in views)
        return *views, self._combined(batch, item, user)

    def _combined(self, batch: Batch, item: Tensor | None, user: Tensor | None) -> Tensor:
        """The weights of clipped propensities."""
        if item is None and user is None:
            return torch.ones_like(batch.candidates_BC, dtype=torch.float32)
        if item is None or user is None:
            only = item if item is not None else user
            assert only is not None
            return 1 / only
        return self.alpha / item + (1 - self.alpha) / user  # eq. UnbiasLI_LU

    @torch.no_grad()
    def statistics(self, batch: Batch) -> dict[str, float]:
        """Numbers about the propensities that are recorded in each epoch.

        Parameters
        ----------
        batch
            A fixed sample of training pairs.

        Returns
        -------
        dict of str to float
            The median propensity of each view, the fraction of it that is clipped, the mean and the standard
            deviation of the weights, and `weight_effective`: the effective sample size (sum w)^2 / sum w^2,
            as a fraction of the pairs. It is 1 where all weights are equal.
        """
        item, user, weight = self.estimates(batch)
        figures = {"weight": float(weight.mean()), "weight_deviation": float(weight.std())}
        figures["weight_effective"] = effective_size(weight.cpu().numpy().ravel()) / max(weight.numel(), 1)
        for name, view in (("item_view", item), ("user_view", user)):
            if view is not None:
                figures[name] = float(view.median())
                figures[f"{name}_clipped"] = float((view < self.clip).float().mean())
        return {name: round(value, 6) for name, value in figures.items()}


def estimator_named(name: str) -> type[Propensity]:
    """The estimator of this name: one of ours, one that was imported, or one of an installed package."""
    broken = {} if name in ESTIMATORS else _installed()
    if name not in ESTIMATORS and name in broken:
        raise BadInput(f"propensity {name!r} cannot be loaded: {broken[name]}")
    if name not in ESTIMATORS:
        near = did_you_mean(name, ESTIMATORS)
        raise BadInput(f"no propensity {name!r}{near}; there are {', '.join(sorted(ESTIMATORS))}")
    return ESTIMATORS[name]


def every_estimator() -> dict[str, type[Propensity]]:
    """All estimators by their names, those of installed packages included."""
    _installed()
    return ESTIMATORS


@cache
def _installed() -> dict[str, str]:
    """Register the estimators of installed packages: entry points of the group `unskew.estimators`. Returns
    what is wrong with those that cannot be loaded; asking for one of these raises that error."""
    broken = {}
    for point in entry_points(group="unskew.estimators"):
        try:
            point.load()
        except Exception as error:  # whatever is wrong with another package, this one works without it
            broken[point.name] = f"{point.value}: {error}"
    return broken
