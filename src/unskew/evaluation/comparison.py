"""Several models on the same rows: the mean of each with its interval, and whether they differ.

    family = compare_models([model.evaluate(split) for model in models])
    print(family.markdown(), family.latex(), family.document())

Each model is compared with the first one, with the best one, or with every other. Whoever makes many
comparisons finds a small p-value by chance, so all p-values are corrected by Holm over the family of
comparisons. Which model is the best is seen on the very rows that it is tested on, so comparisons with it are
corrected over all pairs: any of them might have been chosen.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np

from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.core.formatting import plain
from unskew.core.statistics import estimate, holm
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.metrics import written
from unskew.evaluation.significance import (
    DRAWS,
    Comparison,
    check_comparable,
    comparison_of,
    seed_means,
)
from unskew.report.table import Cell, Table

Against = Literal["first", "best", "all"]

LEVELS = (0.05, 0.01)  # a p-value below the first has one star, below the second two
STARS = "By p (seeds): * p < 0.05, ** p < 0.01."
MOST_SETTINGS = 3  # in the name of a model that others differ from in nothing but settings
NONE = "–"
UNFINISHED = "‡"


@dataclass(frozen=True)
class Mean:
    """The mean of one model over its seeds, and its 95 % interval.

    finished: whether all its runs were trained until no validation metric rose any more.
    """

    mean: float
    low: float
    high: float
    seeds: int
    finished: bool = True


@dataclass(frozen=True)
class Pair:
    """One model minus another. The p-values are corrected over the family; those of `comparison` are not."""

    model: str
    reference: str
    comparison: Comparison
    relative: float  # the difference as a fraction of the reference's mean; nan if that is 0
    p_rows: float
    p_seeds: float | None

    @property
    def stars(self) -> int:
        """How significant the difference is over seeds and users, after Holm: * p < 0.05, ** p < 0.01."""
        return 0 if self.p_seeds is None else sum(self.p_seeds < level for level in LEVELS)

    def difference_cell(self, sign: int = 1) -> Cell:
        """The difference with its stars; with a sign of -1 the reference minus the model."""
        return Cell(f"{sign * self.comparison.difference:+.4f}", marks="*" * self.stars)

    def cells(self) -> tuple[str | Cell, ...]:
        """The row of the comparison in a table, below `HEAD`."""
        low, high = self.comparison.low, self.comparison.high
        relative = NONE if math.isnan(self.relative) else f"{100 * self.relative:+.1f} %"
        p_values = _p(self.p_rows), NONE if self.p_seeds is None else _p(self.p_seeds)
        return self.difference_cell(), f"[{low:+.4f}, {high:+.4f}]", relative, *p_values


HEAD = ("difference", "95 % interval", "relative", "p (rows)", "p (seeds)")  # of the cells of a pair


@dataclass(frozen=True, eq=False)
class Family:
    """Models on the same rows, by one metric, with all comparisons that were asked for."""

    metric: str
    test: str
    protocol: str
    models: dict[str, list[Evaluation]]  # of each model an evaluation for each seed
    against: Against
    means: dict[str, Mean]
    pairs: list[Pair]
    corrected_over: int  # how many comparisons Holm's correction counts
    draws: int  # of the bootstrap

    @property
    def best(self) -> str:
        """The finished model with the highest mean; if none is finished, the one of all."""
        finished = {name: mean for name, mean in self.means.items() if mean.finished} or self.means
        return max(finished, key=lambda name: finished[name].mean)

    @property
    def reference(self) -> str | None:
        """The model that all others are compared with, if it is one."""
        return None if self.against == "all" else self.pairs[0].reference

    def document(self) -> Document:
        """Everything, ready for JSON."""
        some = next(iter(self.models.values()))[0]
        names = ("repeats", "data", "sample", "seed", "whole_test")
        document: Document = {"metric": self.metric, "test": self.test, "protocol": self.protocol}
        document |= {"units": len(some.user), "users": len(np.unique(some.user))}
        document |= {name: some.about[name] for name in names if name in some.about}
        document |= {"against": self.against, "reference": self.reference, "best": self.best}
        document |= {"corrected_over": self.corrected_over, "draws": self.draws}
        document["models"] = {
            name: {
                "mean": mean.mean,
                "interval": (mean.low, mean.high),
                "seeds": mean.seeds,
                "finished": mean.finished,
                "training_seeds": [evaluation.about.get("training_seed") for evaluation in self.models[name]],
            }
            for name, mean in self.means.items()
        }
        document["comparisons"] = [
            {"model": pair.model, "reference": pair.reference, **asdict(pair.comparison)}
            | {"interval_over": pair.comparison.interval_over, "relative": pair.relative}
            | {"p_rows_holm": pair.p_rows, "p_seeds_holm": pair.p_seeds, "stars": pair.stars}
            for pair in self.pairs
        ]
        return dict(plain(document))

    def markdown(self) -> str:
        """All tables as Markdown, each below its caption."""
        return "\n\n".join(table.markdown(with_caption=True) for table in self.tables()) + "\n"

    def latex(self) -> str:
        """All tables as LaTeX."""
        return "\n".join(table.latex() for table in self.tables())

    def tables(self) -> list[Table]:
        """What a document shows: one table if all models are compared with one of them; otherwise the means,
        the matrix of differences, and all pairs."""
        return [self.table()] if self.reference is not None else [self.table(), self.matrix(), self.listed()]

    def table(self) -> Table:
        """A row per model: its mean and, if all are compared with one model, its difference to that one."""
        means = self.mean_table()
        if self.reference is None:
            return means
        comparisons = {pair.model: pair.cells() for pair in self.pairs}
        none = (NONE,) * len(HEAD)
        rows: list[list[str | Cell]] = [
            [*row, *comparisons.get(name, none)] for name, row in zip(self.means, means.rows, strict=True)
        ]
        return Table((*means.head, *HEAD), rows, caption=f"{means.caption} {self.comparisons()}")

    def mean_table(self) -> Table:
        """A row per model: how many seeds it has, its mean and its interval. The best one is bold."""
        rows: list[list[str | Cell]] = []
        for name, mean in self.means.items():
            rank = int(name == self.best)
            interval, marks = f"[{mean.low:.4f}, {mean.high:.4f}]", UNFINISHED * (not mean.finished)
            value = Cell(f"{mean.mean:.4f}", rank=rank, marks=marks)
            rows.append([Cell(name, rank=rank), str(mean.seeds), value, interval])
        head = ("model", "seeds", written(self.metric), "95 % interval")
        return Table(head, rows, caption=f"{self.about()} {self.intervals()}")

    def listed(self) -> Table:
        """A row per comparison."""
        is_single = self.reference is not None
        rows = [
            [Cell(pair.model if is_single else f"{pair.model} − {pair.reference}"), *pair.cells()]
            for pair in self.pairs
        ]
        caption = " ".join([self.about(), self.intervals(), self.comparisons()])
        return Table(("model" if is_single else "model − other", *HEAD), rows, caption=caption)

    def matrix(self) -> Table:
        """The model of each row minus the model of each column, as far as they were compared."""
        names = list(self.models)
        differences = {(pair.model, pair.reference): pair.difference_cell(1) for pair in self.pairs}
        differences |= {(pair.reference, pair.model): pair.difference_cell(-1) for pair in self.pairs}
        rows: list[list[str | Cell]] = [
            [Cell(name), *(differences.get((name, other), NONE) for other in names)] for name in names
        ]
        caption = f"The model of the row minus the model of the column. {self.about()} {self.comparisons()}"
        return Table(("", *map(Cell, names)), rows, caption=caption)

    # What the figures mean

    def about(self) -> str:
        """What was measured, in a sentence."""
        some = next(iter(self.models.values()))[0]
        counts = sorted({mean.seeds for mean in self.means.values()})
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        seeds += " training seed" + ("s" if counts[-1] > 1 else "") + " per model"
        units, whole = f"{len(some.user):,}", some.about.get("whole_test")
        ranked = f"{units} users"
        if self.protocol != "authors":
            of = f" of {whole:,}" if some.about.get("sample") is not None and whole is not None else ""
            ranked = f"{units}{of} rows by {len(np.unique(some.user)):,} users"
        repeats = f", repeats {some.about['repeats']}" if "repeats" in some.about else ""
        figure = f"{written(self.metric)} on the {self.test} test, protocol {self.protocol}"
        cut = any(not mean.finished for mean in self.means.values())
        note = f" {UNFINISHED} not finished: a validation metric was still rising." if cut else ""
        return f"{figure}: {ranked}{repeats}, {seeds}.{note}"

    def intervals(self) -> str:
        """How the intervals are made, in a sentence."""
        seeds = {mean.seeds for mean in self.means.values()}
        if seeds == {1}:
            return (
                "Intervals cover 95 % and are made by a bootstrap over users only: with a single seed the "
                "chance due to the seed is unknown."
            )
        single = "; where a model has a single seed, of a bootstrap over users only" if 1 in seeds else ""
        return f"Intervals cover 95 % and are those of Student's t over training seeds and users{single}."

    def comparisons(self) -> str:
        """What differences, p-values and stars mean, in sentences."""
        to = "" if self.reference is None else f" to {self.reference}"
        units = "users" if self.protocol == "authors" else "rows"
        rows = f"by the paired t-test over {units}, which ignores the chance due to training seeds"
        count = f"{self.corrected_over} comparison{'s' if self.corrected_over > 1 else ''}"
        if self.against == "best" and len(self.means) > 2:
            count = f"all {self.corrected_over} pairs, because the best was found on the same {units}"
        known = [pair.p_seeds is not None for pair in self.pairs]
        seeds = (
            ", and p (seeds) by Student's t over training seeds and users; both are"
            if any(known)
            else "; it is"
        )
        whose = "the other model's" if self.reference is None else "its"
        sentences = [
            f"Differences{to} are paired, on the same {units}; relative is in per cent of {whose} mean.",
            f"p (rows) is {rows}{seeds} two-sided and corrected by Holm over {count}.",
        ]
        if not all(known):
            sentences.append("p (seeds), and stars, exist only where both models have several seeds.")
        return " ".join([*sentences, STARS] if any(known) else sentences)


def compare_models(
    models: Mapping[str, Evaluation | Sequence[Evaluation]] | Sequence[Evaluation],
    metric: str = "ndcg@10",
    against: Against = "first",
    draws: int = DRAWS,
    seed: int = 0,
) -> Family:
    """Compare several models on the same rows.

    Parameters
    ----------
    models
        Evaluations; those that differ in nothing but the training seed are one model. Or, by the name of each
        model, its evaluation, or one for each seed.
    metric
        The metric that is compared.
    against
        The model that each is compared with: the first one, the best one, or all others.
    draws
        The number of draws of the bootstrap over users.
    seed
        The seed of these draws.
    """
    if against not in ("first", "best", "all"):
        raise BadInput(f"against {against!r}: expected first, best or all", field="against")
    groups = _groups_of(models) if isinstance(models, Mapping) else group_by_model(models)
    if len(groups) < 2:
        raise BadInput(
            "expected at least two models; evaluations that differ in the training seed only are one model"
        )
    named = [(name, evaluation) for name, group in groups.items() for evaluation in group]
    check_comparable([evaluation for _, evaluation in named], metric, [_seeded(*pair) for pair in named])
    means = {name: sum(of.mean(metric) for of in group) / len(group) for name, group in groups.items()}
    finished = {name: all(of.about.get("finished", True) for of in group) for name, group in groups.items()}
    best = max(means, key=lambda name: (finished[name], means[name]))
    planned = list(_planned_pairs(list(groups), against, best))
    drawn = {name: seed_means(group, metric, draws, seed) for name, group in groups.items()}
    comparisons = {
        (model, to): comparison_of(groups[model], groups[to], metric, drawn[model], drawn[to])
        for model, to in planned
    }
    p_rows = holm({pair: comparison.p_rows for pair, comparison in comparisons.items()})
    p_seeds = holm({pair: comparison.p_seeds for pair, comparison in comparisons.items()})
    pairs = []
    for (model, to), comparison in comparisons.items():
        if against != "best" or to == best:
            relative = comparison.difference / means[to] if means[to] else math.nan
            p_values = p_rows[model, to] or 0.0, p_seeds[model, to]
            pairs.append(Pair(model, to, comparison, relative, *p_values))
    shown = {}
    for name, group in groups.items():
        mean = estimate(drawn[name])
        shown[name] = Mean(means[name], mean.low, mean.high, len(group), finished[name])
    some = named[0][1]
    return Family(metric, some.test, some.protocol, groups, against, shown, pairs, len(planned), draws)


def _planned_pairs(names: Sequence[str], against: Against, best: str) -> Iterator[tuple[str, str]]:
    """The comparisons that the correction counts, each as a model and the one that it is compared with."""
    for one, other in combinations(names, 2):
        if against == "best" and one != best:
            yield one, other  # if neither of the two is the best, it is counted and not shown
        elif against != "first" or one == names[0]:
            yield other, one


def group_by_model(
    evaluations: Sequence[Evaluation], names: Sequence[str] | None = None
) -> dict[str, list[Evaluation]]:
    """Evaluations by model, in the order in which the models come first. One model has the same settings and
    weights chosen by the same validation metric, and another training seed in each evaluation.

    names: what an error calls each evaluation; by default its number.
    """
    labels = names or [f"evaluation {number}" for number in range(1, len(evaluations) + 1)]
    groups: dict[str, list[tuple[str, Evaluation]]] = {}
    for name, evaluation in zip(labels, evaluations, strict=True):
        key = str((evaluation.about.get("settings", name), evaluation.about.get("weights_chosen_by")))
        groups.setdefault(key, []).append((name, evaluation))
    for group in groups.values():
        _check_seeds(group)
    models = [[evaluation for _, evaluation in group] for group in groups.values()]
    return dict(zip(_names([group[0] for group in models]), models, strict=True))


def _groups_of(models: Mapping[str, Evaluation | Sequence[Evaluation]]) -> dict[str, list[Evaluation]]:
    groups = {name: [of] if isinstance(of, Evaluation) else list(of) for name, of in models.items()}
    for name, group in groups.items():
        if not group:
            raise BadInput(f"{name}: expected at least one evaluation")
        _check_seeds([(f"{name} ({number})", of) for number, of in enumerate(group, 1)])
    return groups


def _check_seeds(group: Sequence[tuple[str, Evaluation]]) -> None:
    """Refuse a seed that comes twice: its chance would seem to be none."""
    seen: dict[Any, str] = {}
    for name, evaluation in group:
        seed = evaluation.about.get("training_seed")
        if seed is not None and seed in seen:
            raise BadInput(
                f"{seen[seed]} and {name} are the same model with the same training seed {seed}; give each "
                "seed once"
            )
        seen[seed] = name


def _names(models: Sequence[Evaluation]) -> list[str]:
    """A name for each model. Models of one name are distinguished by the settings in which they differ, or by
    numbers if these are too many."""
    plain_names = [str(evaluation.about.get("model", "model")) for evaluation in models]
    names = list(plain_names)
    for name in set(plain_names):
        same_name = [number for number, other in enumerate(plain_names) if other == name]
        if len(same_name) == 1:
            continue
        settings = [dict(_settings(models[number])) for number in same_name]
        keys = [
            key
            for key in dict.fromkeys(key for of in settings for key in of)
            if len({of.get(key) for of in settings}) > 1
        ]
        labels = [", ".join(f"{key} {of.get(key)}" for key in keys) for of in settings]
        if len(keys) > MOST_SETTINGS or len(set(labels)) < len(labels):
            labels = [str(number) for number in range(1, len(labels) + 1)]
        for number, words in zip(same_name, labels, strict=True):
            names[number] = f"{name} ({words})"
    return names


def _settings(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """The settings of a model in one level, as words."""
    try:
        _, config, training = json.loads(evaluation.about.get("settings", ""))
    except ValueError:
        return
    yield from _flat({**config, **training, "chosen by": evaluation.about.get("weights_chosen_by")})


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name} ")
        else:
            yield above + name.replace("_", " "), str(value)


def _seeded(name: str, evaluation: Evaluation) -> str:
    seed = evaluation.about.get("training_seed")
    return name if seed is None else f"{name} of seed {seed}"


def _p(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"
