"""Are the estimated propensities any good? Against the ground truth where it is known, and by what their
weights do where it is not.

Only events that are weighted in training are looked at: rows of the training set whose item some user had
before. The figures are explained in `statistics.py`.

The ground truth is asked for observed rows only, where a log can know it: `Log.propensity`, or
`World.exposure` of its rows. A log of clicks alone observes what was shown AND liked, and there no weights by
exposure alone bring the balance to 0.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from unskew.core import formatting
from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.core.progress import progress
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.diagnostics.log.statistics import DECILES
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
from unskew.diagnostics.propensity.tables import Tenths, tables_by_popularity
from unskew.diagnostics.propensity.verdicts import (
    Finding,
    WeightVerdict,
    clipped_fraction,
    judge_balance,
    judge_exposure,
    judge_weights,
)
from unskew.report.summary import Row, Verdict, render_rows, render_sentences

if TYPE_CHECKING:
    from unskew.models.base import Recommender
    from unskew.propensity.base import Propensity
    from unskew.propensity.correction import Correction

SAMPLE = 5000  # training events whose weights are looked at after training
UNIFORM_PAIRS = 100_000  # a mean of so many is off by 0.3 % of a standard deviation


@dataclass(frozen=True)
class Health:
    """Everything that `health` found."""

    source: str
    fingerprint: str  # the hash of the log
    pairs: int  # events that were looked at
    pairs_in_training: int  # events that there are; more, where a sample was looked at
    clip: float
    has_ground_truth: bool
    views: tuple[View, ...]
    weights: Weights
    balance: tuple[Balance, ...]
    deciles: tuple[Decile, ...]
    finding: Finding
    advice: tuple[str, ...]

    def as_dict(self) -> Document:
        """Plain JSON types; what is undefined is None."""
        document: Document = formatting.plain(dataclasses.asdict(self))
        kind, sentence = document.pop("finding").values()
        verdict = {"kind": kind, "finding": sentence, "advice": document.pop("advice")}
        return document | {"verdict": verdict, "sentences": list(self.sentences())}

    def verdict(self) -> Verdict:
        """What the weights do, and what to do about it."""
        return Verdict(self.finding.sentence, self.advice)

    def sentences(self) -> tuple[str, ...]:
        """What was found, one sentence per topic."""
        return render_sentences("diagnostics/templates/health_sentences.txt", health=self)

    def rows(self) -> tuple[Row, ...]:
        """All values as a table, but for those by popularity: see `tables`."""
        return render_rows("diagnostics/templates/health_rows.txt", health=self, factor=_factor)

    def tables(self) -> tuple[Tenths, ...]:
        """The values by tenths of the known items, the most popular first."""
        return tables_by_popularity(self.views, self.deciles)


def _factor(decades: float) -> str:
    return "–" if math.isnan(decades) else f"x {formatting.significant(10**decades)}"


def health(
    split: Split,
    estimates: pa.Table,
    clip: float,
    ground_truth: ArrayLike | None = None,
    seed: int = 0,
    rows: Ints | None = None,
    exposure: Finding | None = None,
) -> Health:
    """Look at the propensities that a model estimated for a log.

    estimates: columns item_view, user_view and weight, as `Model.propensities(split.log)` gives them, one
        line per row of the log.
    clip: the smallest propensity that the weights allow.
    ground_truth: the true propensity of each row of the log, nan where it is unknown.
    seed: of the uniform pairs that the events are compared with.
    rows: the rows to look at, of `weighted_rows`; then `estimates` has one line for each of these. By default
        all of them.
    exposure: of a model that uses no weights, what `judge_exposure_taken` says of it.
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
    views, balance = views_of(columns, clip), balance_of(observed, uniform, columns["weight"])
    has_ground_truth = bool(np.isfinite(columns["ground-truth"]).any())
    weights = judge_weights(columns["weight"], clip)
    if exposure is None and not weights.kind.is_warning:  # a warning about the weights comes first
        weights = judge_balance(balance[0].before, balance[0].after)
    finding = exposure or weights
    advice = render_sentences(
        "diagnostics/templates/health_advice.txt",
        finding=finding,
        is_unweighted=exposure is not None,
        clip=clip,
        views=views,
        has_ground_truth=has_ground_truth,
    )
    return Health(
        source=log.metadata.source,
        fingerprint=log.fingerprint(),
        pairs=len(rows),
        pairs_in_training=len(weighted_rows(split)),
        clip=clip,
        has_ground_truth=has_ground_truth,
        views=views,
        weights=weights_of(columns["weight"]),
        balance=balance,
        deciles=tuple(deciles),
        finding=finding,
        advice=advice,
    )


def weighted_rows(split: Split, sample: int | None = None, seed: int = 0) -> Ints:
    """The rows of the training set whose item some user had before, in the order of the log; with `sample`,
    a random sample of so many of them, drawn with `seed`."""
    rows = np.flatnonzero(split.mask("train") & ~split.first_appearance)
    if sample is None:
        return rows
    if sample < 1:
        raise BadInput(f"sample {sample}: expected at least 1", field="sample")
    if sample >= len(rows):
        return rows
    return np.sort(np.random.default_rng([seed, 17]).choice(rows, sample, replace=False))


class HasPropensities(Protocol):
    """A trained model that may have propensities: `unskew.api.model.Model` is one."""

    @property
    def network(self) -> "Recommender | None": ...

    @property
    def propensity(self) -> "Propensity": ...

    def propensities(self, log: Log, rows: Ints | None = None) -> pa.Table: ...


@dataclass(frozen=True, eq=False)
class TrainingWeights:
    """What the propensities of a trained model do to its loss."""

    clip: float
    weight: Floats  # of each event of a sample; none of a model that does not weight
    exposure: Finding | None = None  # of a model that does not weight: how much exposure it takes out

    @property
    def clipped(self) -> float:
        """The fraction of the events whose weight is the largest that the clip allows."""
        return clipped_fraction(self.weight, self.clip)

    @property
    def finding(self) -> Finding:
        """What the weights do, or what is done instead of weighting."""
        return self.exposure or judge_weights(self.weight, self.clip)


def training_weights(model: HasPropensities, split: Split) -> TrainingWeights | None:
    """Look at the weights that a trained model gives to a sample of its training events; None for models
    without propensities."""
    try:
        clip = model.propensity.clip
    except BadInput:
        return None
    assert model.network is not None
    if exposure := judge_exposure_taken(model.network.correction, split):
        return TrainingWeights(clip, np.zeros(0), exposure)
    weight = model.propensities(split.log, weighted_rows(split, SAMPLE))["weight"]
    return TrainingWeights(clip, np.asarray(weight, np.float64))


def judge_exposure_taken(correction: "Correction | None", split: Split) -> Finding | None:
    """Judge how much exposure a model takes out by `logit-offset` or `weighted-negatives`, as of the end of
    its training set, or say that its weights are all one; None for models that weight."""
    if correction is None or correction.method == "ips-both":
        return None
    if correction.method == "ips":
        return WeightVerdict.UNWEIGHTED.of() if correction.strength == 0 else None
    items = np.arange(split.known_items)
    exposure = correction.propensity.log_exposure(split.log, items, split.train_end)
    return judge_exposure(exposure, correction.strength, correction.method)


def logged_ground_truth(log: Log) -> Floats | None:
    """The probabilities of exposure that the log itself recorded; None if it did not."""
    return None if log.propensity is None else np.asarray(log.propensity, np.float64)


def _those(columns: dict[str, Floats], mask: NDArray[np.bool_]) -> dict[str, Floats]:
    return {name: column[mask] for name, column in columns.items()}
