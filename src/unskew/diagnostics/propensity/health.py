"""Are the estimated propensities any good? Against the ground truth where it is known, and by what their
weights do where it is not.

Only events that are weighted in training are looked at: rows of the training set whose item somebody had
before. The figures are explained in `health_figures`.

The ground truth is asked for observed rows only, where a log can know it: `Log.propensity`, or
`World.exposure` of its rows. A log of clicks alone observes what was shown AND liked, and there no weights by
exposure alone bring the balance to 0.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from unskew.core import formatting
from unskew.core.errors import BadInput
from unskew.core.progress import progress
from unskew.data.log.held_out import effective_size
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.diagnostics.log.statistics import DECILES
from unskew.diagnostics.propensity import findings as words
from unskew.diagnostics.propensity.statistics import (
    Balance,
    Decile,
    Floats,
    View,
    Weights,
    balance_of,
    covariates,
    tenths,
    uniform_pairs,
    views_of,
    weights_of,
)
from unskew.report.summary import Row, Verdict, by_topic

if TYPE_CHECKING:
    from unskew.propensity.base import Propensity
    from unskew.propensity.correction import Correction

WEIGHED = 5000  # training events whose weights are looked at after training
UNIFORM_PAIRS = 100_000  # a mean of so many is off by 0.3 % of a standard deviation
EQUAL = 0.99  # effective fraction from which the weighted loss is the unweighted one, but for its scale
DOMINATED = 0.05  # effective fraction below which a few events have most of the weight


@dataclass(frozen=True)
class Health:
    """Everything that `health` found."""

    source: str
    fingerprint: str  # the hash of the log
    pairs: int  # events that were looked at
    pairs_in_training: int  # events that there are; more, where a sample was looked at
    clip: float
    known: bool  # whether there is a ground truth to compare with
    warning: str  # what is wrong with the weights, by `weights_verdict`; empty where nothing is
    views: tuple[View, ...]
    weights: Weights
    balance: tuple[Balance, ...]
    deciles: tuple[Decile, ...]
    exposure: str = ""  # of a model that does not weight: how much exposure it takes out

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; what is undefined is None."""
        found = dataclasses.asdict(self) | {"verdict": dataclasses.asdict(self.verdict())}
        return formatting.plain(found) | {"sentences": list(self.sentences())}

    def verdict(self) -> Verdict:
        """What the weights do, and what to do about it."""
        return words.verdict(self.warning, self.clip, self.known, self.views, self.balance, self.exposure)

    def sentences(self) -> tuple[str, ...]:
        """What was found, one sentence per topic."""
        return by_topic(
            Sample=words.sample(self.pairs, self.pairs_in_training),
            Clip=words.clipping(self.clip, self.views),
            Weights=words.spread(self.weights),
            Balance=words.balancing(self.balance),
            Truth=words.likeness(self.known, self.views),
        )

    def rows(self) -> tuple[Row, ...]:
        """All figures as a table for people, but for those by popularity: see `tables`."""
        return (
            *words.event_rows(self.pairs, self.pairs_in_training, self.clip),
            *words.weight_rows(self.weights),
            *words.balance_rows(self.balance),
            *(row for view in self.views for row in words.view_rows(view)),
        )

    def tables(self) -> tuple[words.Tenths, ...]:
        """The figures by tenths of the known items, the most popular first."""
        return words.tables(self.views, self.deciles)


def health(
    split: Split,
    estimates: pa.Table,
    clip: float,
    ground_truth: ArrayLike | None = None,
    seed: int = 0,
    rows: Ints | None = None,
    exposure: str = "",
) -> Health:
    """Look at the propensities that a model estimated for a log.

    estimates: columns item_view, user_view and weight, as `Model.propensities(split.log)` gives them, one
        line per row of the log.
    clip: the smallest propensity that the weights allow.
    ground truth: the true propensity of each row of the log, nan where it is unknown.
    seed: of the uniform pairs that the events are compared with.
    rows: the rows to look at, of `weighted_rows`; then `estimates` has one line for each of these. By default
        all of them.
    exposure: of a model that uses no weights, what `exposure_taken` says of it.
    """
    log = split.log
    true = np.full(len(log), np.nan) if ground_truth is None else np.array(ground_truth, np.float64)
    if len(true) != len(log):
        raise BadInput(
            f"{len(true):,} true propensities for a log of {len(log):,} rows: expected one per row"
        )
    expected = len(log) if rows is None else len(rows)
    if len(estimates) != expected:
        raise BadInput(
            f"{len(estimates):,} estimates for {expected:,} rows: expected one per row, in their order"
        )
    columns = {name: np.asarray(estimates[name], np.float64) for name in ("item_view", "user_view", "weight")}
    if rows is None:
        rows = weighted_rows(split)
        columns = {name: column[rows] for name, column in columns.items()}
    columns["ground-truth"] = true[rows]
    if not (columns["weight"] > 0).all():
        raise BadInput("expected a weight above 0 for every row")
    with progress("health", DECILES + 1) as job:
        user, item, time = uniform_pairs(split, UNIFORM_PAIRS, seed)
        observed = covariates(split, log.user[rows], log.item[rows], log.time[rows])
        uniform = covariates(split, user, item, time)
        tenth, uniform_tenth = (tenths(split, items) for items in (log.item[rows], item))
        job.advance(note="balance")
        deciles = []
        for number in range(DECILES):
            here, there = tenth == number, uniform_tenth == number
            part = _those(columns, here)
            deciles.append(
                Decile(
                    number=number + 1,
                    rows=int(here.sum()),
                    fraction=float(here.mean()),
                    weighted_share=float(part["weight"].sum() / columns["weight"].sum()),
                    uniform_share=float(there.mean()),
                    views=views_of(part, clip),
                    weights=weights_of(part["weight"]),
                    balance=balance_of(_those(observed, here), _those(uniform, there), part["weight"]),
                )
            )
            job.advance(note="by popularity")
    return Health(
        source=str(log.metadata.get("source", "the log")),
        fingerprint=log.fingerprint(),
        pairs=len(rows),
        pairs_in_training=len(weighted_rows(split)),
        clip=clip,
        known=bool(np.isfinite(columns["ground-truth"]).any()),
        warning=weights_verdict(columns["weight"], clip),
        views=views_of(columns, clip),
        weights=weights_of(columns["weight"]),
        balance=balance_of(observed, uniform, columns["weight"]),
        deciles=tuple(deciles),
        exposure=exposure,
    )


def weighted_rows(split: Split, sample: int | None = None, seed: int = 0) -> Ints:
    """The rows of the training set whose item somebody had before, in the order of the log; with `sample`,
    a random sample of so many of them, drawn with `seed`."""
    rows = np.flatnonzero(split.mask("train") & ~split.first_appearance)
    if sample is None:
        return rows
    if sample < 1:
        raise BadInput(f"sample {sample}: expected at least 1")
    if sample >= len(rows):
        return rows
    return np.sort(np.random.default_rng([seed, 17]).choice(rows, sample, replace=False))


class Weighting(Protocol):
    """A trained model, as far as its propensities are asked for: `unskew.api.model.Model` is one."""

    @property
    def network(self) -> Any: ...

    @property
    def propensity(self) -> "Propensity": ...

    def propensities(self, log: Log, rows: Ints | None = None) -> pa.Table: ...


@dataclass(frozen=True, eq=False)
class Weighed:
    """What the propensities of a trained model do to its loss."""

    clip: float
    weight: Floats  # of each event of a sample; none of a model that does not weight
    exposure: str = ""  # of a model that does not weight: how much exposure it takes out

    @property
    def clipped(self) -> float:
        """The fraction of the events whose weight is the largest that the clip allows."""
        return _clipped(self.weight, self.clip)

    @property
    def warning(self) -> str:
        """What is wrong with the weights, by `weights_verdict`; empty where nothing is."""
        return weights_verdict(self.weight, self.clip)


def weighed(model: Weighting, split: Split) -> Weighed | None:
    """Look at the weights that a trained model gives to a sample of its training events; None for models
    without propensities."""
    try:
        clip = model.propensity.clip
    except BadInput:
        return None
    if said := exposure_taken(getattr(model.network, "correction", None), split):
        return Weighed(clip, np.zeros(0), said)
    weight = model.propensities(split.log, weighted_rows(split, WEIGHED))["weight"]
    return Weighed(clip, np.asarray(weight, np.float64))


def weights_verdict(weights: ArrayLike, clip: float | None = None) -> str:
    """Say in one sentence what is wrong with inverse-propensity weights, and what to do about it.

    weights: the weight of each training event, or of a sample of them, all above 0. Their scale is of no
        matter.
    clip: the smallest propensity that was allowed (the setting `clip`). Given it, the sentence tells weights
        that are equal because they were clipped from weights that are equal for another reason.

    Returns an empty string where nothing is wrong: the weights differ, and no few of them dominate.
    """
    weight = np.asarray(weights, np.float64)
    if not len(weight):
        return ""
    effective = effective_size(weight)
    if effective > EQUAL * len(weight):
        clipped = 0.0 if clip is None else _clipped(weight, clip)
        why = (
            f"{formatting.fraction(clipped)} of the events are clipped to the same weight"
            if clipped > 0.5
            else "they are nearly the same for all events"
        )
        what = (
            f"train again with a `--clip` well below {clip:g}"
            if clipped > 0.5
            else "train the propensities longer, or choose other ones, such as `--propensity item-pro`"
        )
        return f"The weights do nothing: {why}, so the model learns as if it had none; {what}."
    if effective < DOMINATED * len(weight):
        return (
            f"A few events have most of the weight: {len(weight):,} weighted events are only as precise as "
            f"{effective:,.0f} unweighted ones, so training is noisy; train again with a larger `--clip`."
        )
    return ""


def _clipped(weight: Floats, clip: float) -> float:
    return float((weight * clip >= 1 - 1e-6).mean())


def exposure_taken(correction: "Correction | None", split: Split) -> str:
    """One sentence on how much exposure a model takes out by `logit-offset` or `weighted-negatives`, as of
    the end of its training set, or that its weights are all one; empty for models that weight."""
    if correction is not None and correction.method == "ips" and correction.strength == 0:
        return words.UNWEIGHTED
    if correction is None or correction.method not in ("logit-offset", "weighted-negatives"):
        return ""
    items = np.arange(split.known_items)
    exposure = correction.propensity.log_exposure(split.log, items, split.train_end)
    return words.exposure_verdict(exposure, correction.strength, correction.method)


def logged_ground_truth(log: Log) -> Floats | None:
    """The probabilities of exposure that the log itself recorded; None if it did not."""
    return None if log.propensity is None else np.asarray(log.propensity, np.float64)


def _those(columns: dict[str, Floats], mask: NDArray[np.bool_]) -> dict[str, Floats]:
    return {name: column[mask] for name, column in columns.items()}
