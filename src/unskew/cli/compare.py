"""The verb compare: several runs on the same rows.

Whatever cannot be compared is refused before anything is ranked. For that, each run has an evaluation without
values, with the rows that it is going to rank.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import RenderableType
from rich.text import Text
from tyro.conf import Positional

from unskew.cli.shared import RunVerb, grid, split_of_run, write_file
from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.data.log.held_out import Protocol, held_out, nothing_to_rank
from unskew.data.log.split import Split
from unskew.report.table import Table

if TYPE_CHECKING:
    from unskew.evaluation.comparison import Family
    from unskew.evaluation.evaluate import Evaluation
    from unskew.training.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Compare(RunVerb):
    """Compare runs on the same rows: the mean of each with its interval, their differences, and whether these
    are due to chance. Runs that differ in the training seed only are one model."""

    runs: Positional[
        Annotated[
            tuple[Path, ...],
            tyro.conf.arg(
                metavar="RUN",
                help="Folders that `unskew train` made, or files that `unskew evaluate --save` made.",
            ),
        ]
    ]
    metric: str = "ndcg@10"
    """Which metric: ndcg@K, hr@K or mrr@K and, in the shown test, auc."""
    against: Literal["first", "best", "all"] = "first"
    """What each model is compared with. first: the model of the first RUN. best: the one with the highest
    mean. all: every other model, also as a matrix. All p-values are corrected by Holm; with best over all
    pairs, because the best was found on the same rows."""
    protocol: Protocol | None = None
    """How each positive is ranked, as in `unskew evaluate`. By default as in the files, and full without
    any."""
    test: str | None = None
    """Which test, as in `unskew evaluate`. By default that of the files; without any ordinary, and authors
    with that protocol."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DATA")] = None
    """Where the prepared data is, if it has moved."""
    sample: int | None = None
    """Rank a fixed, seeded sample of so many positives, the same for all; their weights come from the whole
    test. By default as in the files, and everything without any."""
    seed: int | None = None
    """Seed of the sample, of the drawn candidates and of the authors' resampling. By default as in the files,
    and 0 without any."""
    markdown: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the tables as Markdown."""
    latex: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the tables as LaTeX, for the package booktabs."""

    def run(self) -> None:
        from unskew.evaluation.comparison import compare_models

        for file in (self.markdown, self.latex):
            if file is not None and file.is_dir():
                raise BadInput(f"{file}: is a folder; expected the name of a file to write")
        given = _read(self.runs)
        terms = self._terms(given)
        runs = [item for item in given if item.config]
        cut: Split | None = None
        cutoffs: tuple[int, ...] = ()
        if runs:
            cutoffs = _cutoffs(self.metric, terms)
            _check_runs(runs)
            cut = _split_of(runs, self.data)
            given = _planned(given, cut, terms)
        _check(given, self.metric)
        evaluations = [item.evaluated(cut, terms, cutoffs) for item in given]
        family = compare_models(evaluations, self.metric, self.against)
        for file, written in ((self.markdown, family.markdown), (self.latex, family.latex)):
            if file is not None:
                write_file(file, written(), "the tables")
        self.show(family.document() | {"runs": [str(path) for path in self.runs]}, *_shown(family))

    def _terms(self, given: list["_Given"]) -> "_Terms":
        """How runs are evaluated: as asked, or else as the files were."""
        files = [(item.path, _Terms.of(item.evaluation)) for item in given if item.evaluation is not None]
        flags = {"protocol": self.protocol, "test": self.test, "sample": self.sample, "seed": self.seed}
        asked: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
        for path, terms in files:
            for name, value in asked.items():
                was = getattr(terms, name)
                if was != value:
                    raise BadInput(f"{path}: was evaluated with {name} {was}, not with {name} {value}")
        protocol: Protocol = self.protocol or "full"
        usual = _Terms(protocol, "authors" if protocol == "authors" else "ordinary")
        return replace(files[0][1] if files else usual, **asked)


@dataclass(frozen=True)
class _Terms:
    """How a run is evaluated."""

    protocol: Protocol
    test: str
    sample: int | None = None
    seed: int = 0

    @classmethod
    def of(cls, evaluation: "Evaluation") -> "_Terms":
        return cls(
            evaluation.protocol,
            evaluation.test,
            evaluation.about.get("sample"),
            evaluation.about.get("seed", 0),
        )


@dataclass(frozen=True)
class _Given:
    """What was given: a run with its configuration, or a file. `evaluation` is that in the file; that of
    a run has no values yet."""

    path: Path
    config: "RunConfig | None" = None
    evaluation: "Evaluation | None" = None

    @property
    def run_config(self) -> "RunConfig":
        """The configuration of a run."""
        assert self.config is not None
        return self.config

    def evaluated(self, cut: Split | None, terms: _Terms, cutoffs: tuple[int, ...]) -> "Evaluation":
        """The evaluation in a file; a run is ranked now."""
        from unskew.api.create import load

        if cut is None or not self.config:
            assert self.evaluation is not None
            return self.evaluation
        return load(self.path).evaluate(
            cut, terms.protocol, terms.test, sample=terms.sample, seed=terms.seed, cutoffs=cutoffs
        )


def _read(paths: tuple[Path, ...]) -> list[_Given]:
    """The configurations of runs, and the evaluations in files."""
    from unskew.evaluation.evaluate import Evaluation
    from unskew.training.run import read_config

    if len(paths) < 2:
        raise BadInput("expected two or more, each a RUN of `unskew train` or a FILE of `evaluate --save`")
    given = []
    for path in paths:
        if not path.exists():
            raise BadInput(
                f"{path}: no such run or file; `unskew train DATA --out RUN` makes a run, and `unskew "
                "evaluate RUN --save FILE` a file"
            )
        folder = path.is_dir()
        given.append(
            _Given(path, read_config(path)) if folder else _Given(path, evaluation=Evaluation.load(path))
        )
    return given


def _cutoffs(metric: str, terms: _Terms) -> tuple[int, ...]:
    """The cut-offs with which a run has the metric. A metric, a test and a protocol that do not go together
    are refused."""
    from unskew.evaluation.evaluate import CUTOFFS
    from unskew.evaluation.metrics import METRICS

    if terms.protocol == "authors" and terms.test in ("balanced", "weighted", "shown"):
        raise BadInput(f"protocol authors pools the rows of a user: there is no {terms.test} test of it")
    if terms.protocol != "full" and terms.test == "shown":
        raise BadInput(
            f"the shown test ranks what an impression showed: there is no protocol {terms.protocol} of it"
        )
    name, _, cut = metric.partition("@")
    if name in METRICS and cut.isdecimal() and int(cut) > 0:
        return tuple(sorted({*CUTOFFS, int(cut)}))
    if metric == "auc" and terms.test == "shown":
        return CUTOFFS
    known = ", ".join(f"{name}@K" for name in METRICS)
    raise BadInput(f"no metric {metric!r}; there are {known} and, in the shown test, auc")


def _check_runs(runs: list[_Given]) -> None:
    """Refuse runs of other data or of another split, by what they say of themselves."""
    for item in runs:
        one, other = runs[0].run_config, item.run_config
        words = ""
        if one.hash != other.hash:
            where = [config.data or "a log from Python" for config in (one, other)]
            words = f"they were trained on other data, {where[0]} and {where[1]}"
        elif _split_in_words(one) != _split_in_words(other):
            words = f"their splits are {_split_in_words(one)}, and {_split_in_words(other)}"
        if words:
            raise BadInput(f"{runs[0].path} and {item.path} cannot be compared: {words}")


def _split_in_words(config: "RunConfig") -> str:
    fractions = config.split.fractions
    parts = " / ".join(f"{100 * fraction / sum(fractions):g}" for fraction in fractions)
    repeats = "kept" if config.repeats else "hidden"
    return f"{parts} % with repeats {repeats} and min_count {config.min_count}"


def _split_of(runs: list[_Given], data: Path | None) -> Split:
    """The split of all runs, from whichever of them still knows where the data is."""
    knows = (item for item in runs if item.run_config.data and Path(item.run_config.data).exists())
    return split_of_run(next(knows, runs[0]).path, data)


def _planned(given: list[_Given], cut: Split, terms: _Terms) -> list[_Given]:
    """The same, with the evaluation of each run but for its values: which rows it is going to rank."""
    from unskew.evaluation.evaluate import Evaluation

    tested = held_out(cut, "test", terms.test, terms.sample, terms.seed)
    if not len(tested.rows):
        raise nothing_to_rank(cut, "test", terms.test)
    counted = tested.weights > 0
    rows, weights = tested.rows[counted], tested.weights[counted]
    user = cut.log.user[rows].astype(np.int64)
    if terms.protocol == "authors":
        user = np.unique(user)
        weights = np.ones(len(user))
    about = {"repeats": "kept as candidates" if cut.repeats else "hidden", "seed": terms.seed}
    plan = Evaluation(
        terms.protocol, terms.test, user, {}, weights, rows=None if terms.protocol == "authors" else rows
    )
    return [
        replace(item, evaluation=replace(plan, about=about | _model_of(item, terms.test)))
        if item.config
        else item
        for item in given
    ]


def _model_of(run: _Given, test: str) -> Document:
    """What an evaluation of a run says of its model."""
    from unskew.api.create import load
    from unskew.training.run import read_card
    from unskew.training.run_card import settings_key

    if not (run.path / "card.json").is_file():
        load(run.path)  # which refuses a run without a finished epoch
    card, config = read_card(run.path), run.run_config
    return {
        "model": config.model,
        "training_seed": config.training.seed,
        "settings": settings_key(config.model, config.config, config.training),
        "data": config.hash,
        "weights_chosen_by": test if test in card.weights else card.select_by,
    }


def _check(given: list[_Given], metric: str) -> None:
    """Refuse what cannot be compared, by the names that were given."""
    from unskew.evaluation.comparison import group_by_model
    from unskew.evaluation.significance import check_comparable

    evaluations = [item.evaluation for item in given if item.evaluation is not None]
    names = [str(item.path) for item in given]
    for item in given:
        if not item.config and item.evaluation is not None:
            check_comparable([item.evaluation], metric, [str(item.path)])
    check_comparable(evaluations, None, names)
    if len(group_by_model(evaluations, names)) < 2:
        raise BadInput(
            "expected at least two models; these differ in the training seed only, which makes them one"
        )


def _shown(family: "Family") -> list[RenderableType]:
    """What is printed: narrow tables, and below them what they mean."""
    parts: list[RenderableType] = [Text(f"{family.about()}\n"), _printed(family.mean_table()), Text()]
    if family.reference is None:
        parts += [Text("the model of the row minus that of the column"), _printed(family.matrix()), Text()]
    else:
        parts.append(Text(f"minus {family.reference}"))
    return [*parts, _printed(family.listed()), Text(f"\n{family.intervals()} {family.comparisons()}", "dim")]


def _printed(table: Table) -> RenderableType:
    """A table for the terminal."""
    printed = grid(tuple(table.titles))
    for at, column in enumerate(printed.columns):
        column.justify = "left" if at in table.text else "right"
    for row in table.cells:
        printed.add_row(*(Text(cell.text + cell.marks, "bold" if cell.rank else "") for cell in row))
    return printed
