"""The verb compare: several runs on the same rows.

Whatever cannot be compared is refused before anything is ranked. For that, each run has an evaluation without
values, with the rows that it is going to rank.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from rich.console import RenderableType
from rich.text import Text
from tyro.conf import Positional

from unskew.cli.shared import File, MovedData, RunVerb, grid, split_of_run, write_file
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

    runs: Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN")]]
    """Folders that `unskew train` made, or files that `unskew evaluate --save` made."""
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
    data: MovedData = None
    sample: int | None = None
    """Rank a fixed, seeded sample of so many positives, the same for all; their weights come from the whole
    test. By default as in the files, and everything without any."""
    seed: int | None = None
    """Seed of the sample, of the drawn candidates and of the authors' resampling. By default as in the files,
    and 0 without any."""
    markdown: File = None
    """Also write the tables as Markdown."""
    latex: File = None
    """Also write the tables as LaTeX, for the package booktabs."""

    def run(self) -> None:
        from unskew.api.create import load
        from unskew.evaluation.comparison import compare_models

        for file in (self.markdown, self.latex):
            if file is not None and file.is_dir():
                raise BadInput(f"{file}: is a folder; expected the name of a file to write")
        configs, evaluations = _read(self.runs)
        terms = self._terms(evaluations)
        if not configs:
            _check(self.runs, evaluations, {}, self.metric)
        else:
            cutoffs = _cutoffs(self.metric, terms)
            _check_configs(configs)
            cut = _split_of(configs, self.data)
            _check(self.runs, evaluations, _plans(configs, cut, terms), self.metric)
            for path in configs:
                evaluations[path] = load(path).evaluate(cut, **terms, cutoffs=cutoffs)
        family = compare_models([evaluations[path] for path in self.runs], self.metric, self.against)
        for file, written in ((self.markdown, family.markdown), (self.latex, family.latex)):
            if file is not None:
                write_file(file, written(), "the tables")
        self.show(family.document() | {"runs": [str(path) for path in self.runs]}, *_shown(family))

    def _terms(self, evaluations: "dict[Path, Evaluation]") -> Document:
        """How runs are evaluated: as the flags say, or else as the files were."""
        flags = {"protocol": self.protocol, "test": self.test, "sample": self.sample, "seed": self.seed}
        given = {name: value for name, value in flags.items() if value is not None}
        files = {path: _terms_of(evaluation) for path, evaluation in evaluations.items()}
        for path, terms in files.items():
            for name, value in given.items():
                if terms[name] != value:
                    was = f"was evaluated with {name} {terms[name]}"
                    raise BadInput(f"{path}: {was}, not with {name} {value}")
        protocol = self.protocol or "full"
        test = "authors" if protocol == "authors" else "ordinary"
        usual = {"protocol": protocol, "test": test, "sample": None, "seed": 0}
        return next(iter(files.values()), usual) | given


def _terms_of(evaluation: "Evaluation") -> Document:
    about = {"sample": None, "seed": 0} | evaluation.about
    terms = {"protocol": evaluation.protocol, "test": evaluation.test}
    return terms | {name: about[name] for name in ("sample", "seed")}


def _read(paths: tuple[Path, ...]) -> "tuple[dict[Path, RunConfig], dict[Path, Evaluation]]":
    """The configurations of runs, and the evaluations in files."""
    from unskew.evaluation.evaluate import Evaluation
    from unskew.training.run import read_config

    if len(paths) < 2:
        raise BadInput("expected two or more, each a RUN of `unskew train` or a FILE of `evaluate --save`")
    for path in paths:
        if not path.exists():
            raise BadInput(
                f"{path}: no such run or file; `unskew train DATA --out RUN` makes a run, and `unskew "
                "evaluate RUN --save FILE` a file"
            )
    configs = {path: read_config(path) for path in paths if path.is_dir()}
    return configs, {path: Evaluation.load(path) for path in paths if path not in configs}


def _cutoffs(metric: str, terms: Document) -> tuple[int, ...]:
    """The cut-offs with which a run has the metric. A metric, a test and a protocol that do not go together
    are refused."""
    from unskew.evaluation.evaluate import CUTOFFS
    from unskew.evaluation.metrics import METRICS

    protocol, test = terms["protocol"], terms["test"]
    if protocol == "authors" and test in ("balanced", "weighted", "shown"):
        raise BadInput(f"protocol authors pools the rows of a user: there is no {test} test of it")
    if protocol != "full" and test == "shown":
        raise BadInput(
            f"the shown test ranks what an impression showed: there is no protocol {protocol} of it"
        )
    name, _, cut = metric.partition("@")
    if name in METRICS and cut.isdecimal() and int(cut) > 0:
        return tuple(sorted({*CUTOFFS, int(cut)}))
    if metric == "auc" and test == "shown":
        return CUTOFFS
    ranked = ", ".join(f"{name}@K" for name in METRICS)
    raise BadInput(f"no metric {metric!r}; there are {ranked} and, in the shown test, auc")


def _check_configs(configs: "dict[Path, RunConfig]") -> None:
    """Refuse runs of other data or of another split, by what they say of themselves."""
    first, one = next(iter(configs.items()))
    for path, other in configs.items():
        splits, reason = (_split_in_words(one), _split_in_words(other)), ""
        if one.hash != other.hash:
            where = [config.data or "a log from Python" for config in (one, other)]
            reason = f"they were trained on other data, {where[0]} and {where[1]}"
        elif splits[0] != splits[1]:
            reason = f"their splits are {splits[0]}, and {splits[1]}"
        if reason:
            raise BadInput(f"{first} and {path} cannot be compared: {reason}")


def _split_in_words(config: "RunConfig") -> str:
    fractions = config.split.fractions
    parts = " / ".join(f"{100 * fraction / sum(fractions):g}" for fraction in fractions)
    repeats = "kept" if config.repeats else "hidden"
    return f"{parts} % with repeats {repeats} and min_count {config.min_count}"


def _split_of(configs: "dict[Path, RunConfig]", data: Path | None) -> Split:
    """The split of all runs, from one that still knows where the data is, if there is one."""
    knows = (path for path, config in configs.items() if config.data and Path(config.data).exists())
    return split_of_run(next(knows, next(iter(configs))), data)


def _plans(configs: "dict[Path, RunConfig]", cut: Split, terms: Document) -> "dict[Path, Evaluation]":
    """For each run an evaluation without values, with the rows that it is going to rank."""
    from unskew.api.create import load
    from unskew.evaluation.evaluate import Evaluation
    from unskew.training.run import read_card
    from unskew.training.run_card import settings_key

    protocol, test = terms["protocol"], terms["test"]
    tested = held_out(cut, "test", test, terms["sample"], terms["seed"])
    if not len(tested.rows):
        raise nothing_to_rank(cut, "test", test)
    counted = tested.weights > 0
    rows, weights = tested.rows[counted], tested.weights[counted]
    user = cut.log.user[rows].astype(np.int64)
    if protocol == "authors":
        user = np.unique(user)
        weights = np.ones(len(user))
    plan = Evaluation(protocol, test, user, {}, weights, rows=None if protocol == "authors" else rows)
    about = {"repeats": "kept as candidates" if cut.repeats else "hidden", "seed": terms["seed"]}
    plans = {}
    for path, config in configs.items():
        if not (path / "card.json").is_file():
            load(path)  # which refuses a run without a finished epoch
        card = read_card(path)
        model = {
            "model": config.model,
            "training_seed": config.training.seed,
            "settings": settings_key(config.model, config.config, config.training),
            "data": config.hash,
            "weights_chosen_by": test if test in card.weights else card.select_by,
        }
        plans[path] = replace(plan, about=about | model)
    return plans


def _check(
    paths: tuple[Path, ...], files: "dict[Path, Evaluation]", plans: "dict[Path, Evaluation]", metric: str
) -> None:
    """Refuse what cannot be compared, by the names that were given."""
    from unskew.evaluation.comparison import group_by_model
    from unskew.evaluation.significance import check_comparable

    for path, evaluation in files.items():
        check_comparable([evaluation], metric, [str(path)])
    evaluations, names = [(files | plans)[path] for path in paths], [str(path) for path in paths]
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
