"""The command line. A verb is a small dataclass; its flags are the fields of the settings that the Python functions take.

What needs torch is imported by the verbs that need it: it takes seconds.
"""

import json as json_library
import math
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import duckdb
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, Suppress

from unskew.config import did_you_mean, names_of
from unskew.data.audit import audit
from unskew.data.held_out import Protocol
from unskew.data.log import Log
from unskew.data.prepare import Preparation, prepare
from unskew.data.simulate import Simulation, simulate
from unskew.data.split import Split, Splitting, split
from unskew.data.views import AUDIENCE, HISTORY
from unskew.errors import BadInput, Leak, UnskewError
from unskew.health import Health, health, logged_truth
from unskew.inspection import Inspection, inspect
from unskew.progress import shown_on

if TYPE_CHECKING:
    from unskew.model import Model

Data = Annotated[Path, tyro.conf.arg(metavar="DATA", help="A folder that `unskew prepare` made.")]
RunArg = Annotated[Path, tyro.conf.arg(metavar="RUN", help="A folder that `unskew train` made.")]
Out = Annotated[Path, tyro.conf.arg(metavar="DATA", help="The folder to write; on any error it is as it was before.")]

# No markup: a path or an id may hold square brackets.
output = Console(highlight=False, markup=False)
messages = Console(stderr=True, highlight=False, markup=False)


@dataclass(frozen=True, kw_only=True)
class Verb:
    json: bool = False
    """Print one JSON document on standard output; everything else goes to standard error."""

    def show(self, document: dict[str, Any], *tables: Table) -> None:
        if self.json:
            print(json_library.dumps(document, indent=1, allow_nan=False))
        else:
            for table in tables:
                output.print(table)


@dataclass(frozen=True, kw_only=True)
class Prepare(Verb):
    """Read a log, check every row, and prepare it once: duplicates, labels, k-core, index, both views."""

    source: Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE", help="A file, a folder or a pattern.")]]
    out: Out
    settings: OmitArgPrefixes[Preparation] = field(default_factory=Preparation)

    def run(self) -> None:
        log = prepare(self.source, self.out, **asdict(self.settings))
        facts = {name: log.facts[name] for name in ("source", "rows", "positives", "users", "items", "columns", "time_unit", "removed")}
        self.show({"data": str(self.out), **facts}, _pairs(f"{self.source} -> {self.out}", _flat(facts)))
        if log.facts["removed"]["bad_rows"]:
            messages.print(f"{log.facts['removed']['bad_rows']} bad rows were set aside: {self.out / 'bad_rows.csv'}")


@dataclass(frozen=True, kw_only=True)
class Inspect(Verb):
    """Show what a log is like and how it is skewed: size, ties, popularity, drift, order, and what resampling changes."""

    data: Positional[Data]
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write one self-contained HTML file with plots (extra `report`)."""
    seed: int = 0
    """Seed of the shuffles that test whether order matters."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)

    def run(self) -> None:
        found = inspect(_split(self.data, self.splitting), self.seed)
        if self.html is not None:
            from unskew.report.inspect_page import inspect_page

            _write_page(self.html, inspect_page(found))
        self.show(found.as_dict(), inspection_table(found))


@dataclass(frozen=True, kw_only=True)
class Audit(Verb):
    """Prove that nothing a model may read comes from the future, or name the first row that does (and exit with 1)."""

    data: Positional[Data]
    history: int = HISTORY
    """Past items of a user that a model reads."""
    audience: int = AUDIENCE
    """Past users of an item that a model reads."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)

    def run(self) -> None:
        findings = audit(_split(self.data, self.splitting), self.history, self.audience)
        leaks = [finding for finding in findings if not finding.passed]
        rows = [
            (finding.check, f"{finding.checked:,}", finding.offence or f"no leak{f' ({finding.note})' if finding.note else ''}")
            for finding in findings
        ]
        document = {"leak_free": not leaks, "checks": [asdict(finding) | {"passed": finding.passed} for finding in findings]}
        self.show(document, _table(f"Leak audit of {self.data}", ("check", "checked", "finding"), rows))
        if leaks:
            raise Leak(f"{leaks[0].check}: {leaks[0].offence}")


@dataclass(frozen=True, kw_only=True)
class Simulate(Verb):
    """Make a log from a world whose true preferences and exposure probabilities are known."""

    out: Out
    settings: OmitArgPrefixes[Simulation] = field(default_factory=Simulation)

    def run(self) -> None:
        log = prepare(simulate(**asdict(self.settings)).log, self.out, duplicates="keep")
        facts = {name: log.facts[name] for name in ("rows", "positives", "users", "items")}
        self.show({"data": str(self.out), **facts, "world": asdict(self.settings)}, _pairs(f"simulated world -> {self.out}", facts))


@dataclass(frozen=True, kw_only=True)
class Train(Verb):
    """Train a model; stopped at any moment, `--resume` goes on and ends with the same weights, bit for bit."""

    data: Positional[Data]
    out: Annotated[Path, tyro.conf.arg(metavar="RUN", help="The folder of the run.")]
    model: str = "deps"
    """Which model: `unskew models` lists them. Its own settings are flags, too."""
    resume: bool = False
    """Go on with a run that was stopped."""
    threads: int | None = None
    """Of torch; by default its own choice. The same number gives the same weights."""
    tensorboard: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Also write the records for TensorBoard, into a folder of this run alone (extra `tensorboard`)."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)
    training: Suppress[Any] = None  # of the chosen model, as its config: see `_train_of`
    config: Suppress[Any] = None

    def run(self) -> None:
        import torch

        from unskew.run import card, train
        from unskew.tracking import tensorboard
        from unskew.train import METRIC

        if self.threads is not None:
            if self.threads < 1:
                raise BadInput(f"threads {self.threads}: expected at least 1")
            torch.set_num_threads(self.threads)
        begun = self.resume and (self.out / "config.json").is_file()
        on_record = None if self.tensorboard is None else tensorboard(self.tensorboard, begun)
        cut, data = _split(self.data, self.splitting), str(self.data.resolve())
        _, trainer = train(cut, self.model, self.config, self.training, self.out, self.resume, data, on_record)
        rounds = [record for record in trainer.records if "valid" in record]
        said, title = card(self.out), f"{self.model} -> {self.out}"
        versions = list(rounds[0]["valid"]) if rounds else []
        rows = [
            (
                str(r["round"]),
                *(f"{r['losses'][name]:.4f}" for name in r["losses"]),
                *(
                    f"{r['valid'][version][METRIC]:.4f}{'*' if said['best'][version]['round'] == r['round'] else ''}"
                    for version in versions
                ),
            )
            for r in rounds
        ]
        head = ("round", *(rounds[0]["losses"] if rounds else ()), *(f"{version} {METRIC}" for version in versions))
        # A model without rounds: what validation chose.
        chosen = {f"{by}: {_named(name)}": _span(name, value, cut) for by, state in said["chosen"].items() for name, value in state.items()}
        shown = _table(title, head, rows) if rounds else _pairs(title, chosen)
        if not trainer.stages and self.model.startswith("debiased-"):
            its = self.model.removeprefix("debiased-")
            messages.print(f"{its} is not trained by gradients, so there is no loss to weight: this run is {its} as it is", soft_wrap=True)
        self.show({"run": str(self.out), **said, "records": trainer.records}, shown)


@dataclass(frozen=True, kw_only=True)
class Evaluate(Verb):
    """Rank the test part with a trained run, under one protocol, and show the metrics with their intervals."""

    folder: Positional[RunArg]
    protocol: Protocol = "full"
    """How each positive is ranked. full: among the whole catalogue. uni100: among 100 uniformly drawn items. authors: the same,
    pooled by user, as the paper's tables are."""
    test: str | None = None
    """Which test of the held-out part: ordinary (every row counts once), balanced (every item counts once), shown (among what the
    same visit showed), randomised, weighted (by logged propensities), authors (the paper's resampling), or one that the log names.
    By default ordinary, and authors with that protocol."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DATA")] = None
    """Where the prepared data is, if it has moved."""
    sample: int | None = None
    """Rank a fixed, seeded sample of so many positives; their weights come from the whole test."""
    seed: int = 0
    """Seed of the sample, of the drawn candidates and of the authors' resampling."""
    cutoffs: tuple[int, ...] = (5, 10, 20)
    """The K of NDCG@K, HR@K and MRR@K."""
    choose_by: Literal["ordinary", "balanced", "shown"] | None = None
    """Which version of the validation part chose the weights that are evaluated; by default the test's own, where there is one."""
    save: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write every ranked row with its values as a Parquet file, for `unskew compare`."""
    rolling: Annotated[str | None, tyro.conf.arg(metavar="WINDOW")] = None
    """Evaluate window by window along the time line instead: a duration such as 7d, 12h or 1w."""
    refresh: Literal["never", "each"] = "never"
    """With --rolling: train the model again before each window, or never."""

    def run(self) -> None:
        from unskew.evaluate import METRICS
        from unskew.model import load
        from unskew.significance import interval

        trained, cut = load(self.folder), _split_of_run(self.folder, self.data)
        if self.rolling is not None:
            return self._roll(trained, cut)
        if self.refresh != "never":
            raise BadInput("--refresh goes with --rolling WINDOW")
        found = trained.evaluate(cut, self.protocol, self.test, self.sample, self.seed, self.cutoffs, self.choose_by)
        if self.save is not None:
            found.save(self.save)
        intervals = {name: interval(found, name, 300) for name in found.values}
        shown = [(name, f"{found.mean(name):.4f}", "{:.4f} - {:.4f}".format(*intervals[name])) for name in found.values]
        metric = f"{next(iter(METRICS))}@{10 if 10 in self.cutoffs else self.cutoffs[0]}"
        groups = [
            (segment, group, f"{figures['units']:,}", f"{figures['share']:.0%}", f"{figures[metric]:.4f}" if metric in figures else "–")
            for segment, parts in found.by_segment().items()
            for group, figures in parts.items()
        ]
        title = f"{trained.name}, {found.test} test, protocol {found.protocol}"
        said = {"units": len(found.user), "effective sample size": round(found.effective_sample_size), "repeats": found.about["repeats"]}
        said |= {"left out": _in_words(found.about["left_out"]), "weights chosen by": found.about["weights_chosen_by"]}
        document = {"run": str(self.folder), **_plain(found.as_dict()), "intervals": _plain(intervals)}
        self.show(
            document,
            _pairs(title, said),
            _table("", ("", "mean", "95 % interval over users"), shown),
            _table("", ("segment", "", "units", "weight", metric), groups),
        )
        return None

    def _roll(self, trained: "Model", cut: Split) -> None:
        from unskew.timeline import rolling

        if self.save is not None or self.choose_by is not None:
            raise BadInput("--save and --choose-by do not go with --rolling")
        assert self.rolling is not None
        found = rolling(trained, cut, self.rolling, self.refresh, self.protocol, self.test, self.sample, self.seed)
        metrics = [f"{name}@10" for name in ("ndcg", "hr", "mrr")]
        document = found.as_dict()
        rows = [
            (str(part["start"]), f"{part['units']:,}", *(f"{part['metrics'][name]:.4f}" if part["units"] else "–" for name in metrics))
            for part in document["windows"]
        ]
        rows.append(("all windows", "", *(f"{found.mean(name):.4f}" for name in metrics)))
        title = f"{trained.name}, windows of {self.rolling}, refresh {self.refresh}"
        mean = {name: found.mean(name) for name in metrics}
        self.show(_plain({"run": str(self.folder), **document, "metrics": mean}), _table(title, ("from", "units", *metrics), rows))


@dataclass(frozen=True, kw_only=True)
class Compare(Verb):
    """Compare saved evaluations of the same rows. Files of one model with different seeds count together; the first model is
    compared with each of the others."""

    files: Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE", help="Files that `unskew evaluate --save` made.")]]
    metric: str = "ndcg@10"
    """Which metric."""

    def run(self) -> None:
        from unskew.evaluate import Evaluation
        from unskew.significance import compare, holm, interval

        groups: dict[str, list[Evaluation]] = {}
        for file in self.files:
            found = Evaluation.load(file)
            groups.setdefault(found.about.get("settings", str(file)), []).append(found)
        models = list(groups.values())
        if len(models) < 2:
            raise BadInput("expected files of at least two models; files that differ in the seed only are one model")
        names = [_numbered(group[0].about.get("model", "?"), number) for number, group in enumerate(models, 1)]
        compared = {name: compare(models[0], group, self.metric) for name, group in zip(names[1:], models[1:], strict=True)}
        adjusted = holm({name: each.p_bootstrap for name, each in compared.items() if each.p_bootstrap is not None})
        means = {name: interval(group, self.metric) for name, group in zip(names, models, strict=True)}
        document = {
            "metric": self.metric,
            "models": {
                name: {"mean": sum(each.mean(self.metric) for each in group) / len(group), "interval": means[name], "seeds": len(group)}
                for name, group in zip(names, models, strict=True)
            },
            "comparisons": {
                name: asdict(each) | {"interval_over": each.interval_over, "p_holm": adjusted.get(name)} for name, each in compared.items()
            },
        }
        rows = [
            (
                f"{names[0]} - {name}",
                f"{each.difference:+.4f}",
                f"{each.low:+.4f} - {each.high:+.4f}",
                each.interval_over,
                "one seed: none" if each.p_bootstrap is None else f"{each.p_bootstrap:.3f} (Holm {adjusted[name]:.3f})",
            )
            for name, each in compared.items()
        ]
        self.show(_plain(document), _table("", (self.metric, "difference", "95 % interval", "over", "p"), rows))


@dataclass(frozen=True, kw_only=True)
class PropensityHealth(Verb):
    """Calibration, clipping, weights and balance of a run's propensities, against the truth where it is known."""

    folder: Positional[RunArg]
    data: Annotated[Path | None, tyro.conf.arg(metavar="DATA")] = None
    """Where the prepared data is, if it has moved."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write one self-contained HTML file with plots (extra `report`)."""

    def run(self) -> None:
        from unskew.model import load

        trained = load(self.folder)
        clip = trained.propensity.clip
        cut = _split_of_run(self.folder, self.data)
        found = health(cut, trained.propensities(cut.log), clip, logged_truth(cut.log))
        if self.html is not None:
            from unskew.report.health_page import health_page

            _write_page(self.html, health_page(found, self.folder.name))
        self.show(found.as_dict(), inspection_table(found), _table("", *found.decile_table()))


@dataclass(frozen=True, kw_only=True)
class PropensityExport(Verb):
    """Write both propensities, the weight and the part (train, valid, test) of every row, with your ids, for any other library."""

    folder: Positional[RunArg]
    data: Positional[Data]
    out: Annotated[Path, tyro.conf.arg(metavar="FILE", help="The Parquet file to write; it must not be there yet.")]

    def run(self) -> None:
        from unskew.model import load

        trained = load(self.folder)
        clip = trained.propensity.clip
        parts = trained.save_propensities(_split_of_run(self.folder, self.data).log, self.out)
        document = {"file": str(self.out), "run": str(self.folder), "model": trained.name, "clip": clip}
        document |= {"rows": sum(parts.values()), "parts": parts}
        self.show(document, _pairs(f"{self.folder} -> {self.out}", _flat(document)))


@dataclass(frozen=True, kw_only=True)
class Propensity:
    """Look at a run's propensities (health), or take their weights elsewhere (export)."""

    verb: OmitSubcommandPrefixes[
        Annotated[PropensityHealth, tyro.conf.subcommand("health")] | Annotated[PropensityExport, tyro.conf.subcommand("export")]
    ]

    def run(self) -> None:
        self.verb.run()


@dataclass(frozen=True, kw_only=True)
class Recommend(Verb):
    """The best items for a user of the log, or after a history of item ids, from a stored run alone."""

    folder: Positional[RunArg]
    history: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="ITEM")] = ()
    """An item of the history, oldest first; given once per item."""
    user: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None
    """A user of the log."""
    k: int = 10
    """How many items."""
    include_seen: bool | None = None
    """Whether items of the history can be recommended again; by default as in the evaluation of this run."""
    choose_by: Literal["ordinary", "balanced", "shown"] | None = None
    """Which version of the validation part chose the weights that recommend; by default what training was told."""

    def run(self) -> None:
        if (self.user is None) == (not self.history):
            raise BadInput("expected --user ID, or --history ITEM once per item, and not both")
        from unskew.model import load

        trained = load(self.folder)
        if self.choose_by is not None:
            trained.chosen_by(self.choose_by)
        found = (
            trained.recommend(users=[self.user], k=self.k, include_seen=self.include_seen)
            if self.user is not None
            else trained.recommend(histories=[self.history], k=self.k, include_seen=self.include_seen)
        )
        table = found.table.to_pylist()
        shown = [(str(row["rank"]), str(row["item_id"]), f"{row['score']:.4f}", str(row.get("title", ""))) for row in table]
        counts = {"unknown_users": found.unknown_users, "skipped_items": found.skipped_items}
        self.show({"recommendations": table, **counts}, _table("", ("rank", "item", "score", "title"), shown))
        for user in found.users_unknown:
            messages.print(f"user {user!r} is not in the log of this run, so this is what an empty history gets", soft_wrap=True)
        if found.items_unknown:
            messages.print(f"skipped, not in the log of this run: {', '.join(map(repr, found.items_unknown))}", soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Models(Verb):
    """List all models with their papers and settings."""

    def run(self) -> None:
        from unskew.models.base import MODELS
        from unskew.models.debiased import Weighting
        from unskew.train import Training

        rows = [
            (name, kind.paper, ", ".join(f"{f.name} {f.default}" for f in fields(kind.Config))) for name, kind in sorted(MODELS.items())
        ]
        listed = {
            name: {"paper": kind.paper, "config": asdict(kind.Config()), "training": asdict(Training(**kind.recipe))}
            for name, kind in sorted(MODELS.items())
        }
        any_of_them = "any of them, weighted by inverse propensities (Xu et al., CIKM 2022)"
        rows.append(("debiased-MODEL", any_of_them, ", ".join(f"{f.name} {f.default}" for f in fields(Weighting))))
        document = {"models": listed, "debiased": {"paper": any_of_them, "config": asdict(Weighting())}}
        self.show(document, _table("", ("model", "paper", "settings"), rows))


def _model_of(arguments: list[str]) -> str:
    named = [value for flag, value in pairwise(arguments) if flag == "--model"]
    named += [argument.split("=", 1)[1] for argument in arguments if argument.startswith("--model=")]
    return named[-1] if named else "deps"


def _train_of(arguments: list[str]) -> type[Train]:
    """The verb with the flags of the model that was named."""
    from unskew.models.base import model_named
    from unskew.train import Training

    name = _model_of(arguments)
    kind = model_named(name)
    names = names_of(kind.Config)
    everything = [*names, *names_of(Training), *names_of(Splitting), *(f.name for f in fields(Train))]
    for setting in names:
        if everything.count(setting) > 1:
            raise BadInput(f"{name}: {setting!r} is a setting of two of its parts, and a flag can mean only one; train it from Python")
    flags: Any = OmitArgPrefixes
    config = ("config", flags[kind.Config], field(default_factory=kind.Config))
    training = ("training", flags[Training], field(default_factory=lambda: Training(**kind.recipe)))
    return make_dataclass("Train", [config, training], bases=(Train,), frozen=True, kw_only=True, namespace={"__doc__": Train.__doc__})


@dataclass(frozen=True, kw_only=True)
class Demo(Verb):
    """See it work: prepare the demo data, audit it, draw how it is skewed, and train DEPS and its unweighted twin."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("demo")
    """Where the prepared data and the page go."""

    def run(self) -> None:
        from unskew import demo

        done = demo.run(self.out)
        leak_free = f"Leak audit: {sum(finding.checked for finding in done.findings):,} values checked, no leak."
        document = done.inspection.as_dict() | {"page": str(done.page), "leak_free": True, "results": done.results, "protocol": "full"}
        tests, metrics = ("ordinary", "balanced"), ("ndcg@10", "hr@10")
        scores = [
            (name, *(" / ".join(f"{found[test][metric]:.4f}" for metric in metrics) for test in tests))
            for name, found in done.results.items()
        ]
        head = ("NDCG@10 / HR@10, full ranking", *(f"{test} test" for test in tests))
        self.show(document, inspection_table(done.inspection), _table("", head, scores))
        for sentence in done.inspection.sentences():
            messages.print(sentence, soft_wrap=True)
        messages.print(f"{leak_free}\nThe picture: {done.page}", soft_wrap=True)


VERBS: dict[str, Callable[..., Any]] = {
    "prepare": Prepare,
    "inspect": Inspect,
    "audit": Audit,
    "simulate": Simulate,
    "train": Train,
    "evaluate": Evaluate,
    "compare": Compare,
    "recommend": Recommend,
    "propensity": Propensity,
    "models": Models,
    "demo": Demo,
}


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the job failed, 2 wrong use or bad input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"unskew {version('unskew')}")
        return 0
    signal.signal(signal.SIGTERM, _stopped)
    try:
        _check_words(arguments)
        verb = tyro.extras.subcommand_cli_from_dict(
            VERBS | ({"train": _train_of(arguments)} if arguments[:1] == ["train"] else {}),
            prog="unskew",
            description="Unbiased next-item recommendation from biased interaction logs.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        with shown_on(messages):
            verb.run()
    except UnskewError as error:
        messages.print(f"unskew: {error}", style="bold red" if messages.is_terminal else None, soft_wrap=True)
        return error.exit_code
    except (KeyboardInterrupt, duckdb.InterruptException):  # the second is how DuckDB passes the first on, where it met it
        messages.print("unskew: stopped")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `unskew ... | head`
        sys.stderr.close()
        return 0
    return 0


# What people guess, and what it is called here.
ALIASES = {
    **dict.fromkeys(("--epochs", "--n-epochs", "--max-epochs"), "--rounds"),
    **dict.fromkeys(("--lr", "--learning_rate"), "--learning-rate"),
    **dict.fromkeys(("--embedding-dim", "--embedding-size", "--emb-dim", "--dim", "--hidden-size"), "--width"),
    **dict.fromkeys(("--batch", "--bs", "--train-batch-size"), "--batch-size"),
    **dict.fromkeys(("--max-len", "--maxlen", "--max-length", "--max-seq-length"), "--history"),
    **dict.fromkeys(("--weight-decay-rate", "--l2"), "--weight-decay"),
    "--topk": "--k",
    "--seen": "--include-seen",
    "--valid-test": "--choose-by",
}
GONE = dict.fromkeys(("--resample", "--resample-seed", "--strength"), "tests are weights now; --test balanced lets every item count once")


def _check_words(arguments: list[str]) -> None:
    """Words that are nearly right: a verb, a flag of another library or of another model. The rest is left to the parser."""
    verb = arguments[0] if arguments else ""
    if verb and not verb.startswith("-") and verb not in VERBS:
        raise BadInput(f"no verb {verb!r}{did_you_mean(verb, VERBS)}; there are {', '.join(VERBS)}")
    given = [argument.split("=", 1)[0] for argument in arguments[1:] if argument.startswith("--")]
    gone = next((flag for flag in given if flag in GONE), None)
    if gone is not None:
        raise BadInput(f"{gone} is gone: {GONE[gone]}")
    own = _check_settings(_model_of(arguments), given) if verb == "train" else set()
    guessed = next((flag for flag in given if flag in ALIASES and flag not in own), None)
    if guessed is not None:
        raise BadInput(f"no flag {guessed}; here it is {ALIASES[guessed]}")


def _check_settings(name: str, given: list[str]) -> set[str]:
    """The flags of a model. A setting of another model is not a slip of the pen: it is said whose it is."""
    from unskew.models.base import MODELS, model_named

    own = {f"--{setting.replace('_', '-')}" for setting in names_of(model_named(name).Config)}
    for flag in given:
        setting = flag.removeprefix("--").replace("-", "_")
        others = [other for other, kind in sorted(MODELS.items()) if setting in names_of(kind.Config)]
        if others and flag not in own:
            raise BadInput(f"{name} has no setting {flag}; it is one of {', '.join(others)}")
    return own


def _stopped(number: int, frame: object) -> None:
    """Leave as on Ctrl-C, so that scratch folders are removed."""
    raise KeyboardInterrupt


def inspection_table(found: Inspection | Health) -> Table:
    explained = output.width >= 110  # else the meanings would fold into narrow columns
    table = _table("", ("",) * (4 if explained else 3), ())
    table.columns[2].justify = "right"
    group = None
    for row in found.rows():
        if group not in (None, row.group):
            table.add_section()
        meaning = [Text(row.meaning, "dim")] if explained else []
        table.add_row(Text("" if row.group == group else row.group, "bold"), Text(row.name), Text(row.value), *meaning)
        group = row.group
    return table


def _split(data: Path, settings: Splitting) -> Split:
    return split(Log.open(data), **asdict(settings))


def _split_of_run(folder: Path, data: Path | None) -> Split:
    """The split that a run was trained on; the data must be the same, wherever it is now."""
    from unskew.run import card

    config = json_library.loads((folder / "config.json").read_text(encoding="utf-8"))
    if data is None and not config["data"]:
        raise BadInput(f"{folder}: trained from Python, so it does not know where its data is; say it with --data")
    if data is None and not Path(config["data"]).exists():
        raise BadInput(f"{config['data']}: the data of this run is gone or has moved; say with --data where it is now")
    log = Log.open(data or Path(config["data"]))
    if log.fingerprint() != card(folder)["data"]["hash"]:
        raise BadInput(f"{data or config['data']}: not the data that this run was trained on")
    return split(log, **{**config["split"], "shares": tuple(config["split"]["shares"])})


def _write_page(file: Path, page: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UnskewError(f"{file}: cannot be written ({error.strerror})") from None
    messages.print(f"the page: {file}", soft_wrap=True)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """JSON has no nan: what is undefined is null."""
    plain = {name: _plain(value) if isinstance(value, dict) else value for name, value in document.items()}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in plain.items()}


def _in_words(counts: dict[str, int]) -> str:
    said = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(said) or "nothing"


def _named(name: str) -> str:
    return name.removesuffix("_ticks").replace("_", " ")


def _span(name: str, value: float, cut: Split) -> str:
    """A number that validation chose; a span of time in days, where the log's times are dates."""
    from unskew.statistics import ticks_per_second

    if not name.endswith("_ticks"):
        return f"{value:g}"
    log = cut.log
    ticks = ticks_per_second(int(log.time.min()), int(log.time.max()), log.facts.get("time_unit", "as given"))
    return "none" if not value else f"{value:g} ticks" if ticks is None else f"{value / ticks / 86400:g} days"


def _numbered(name: str, number: int) -> str:
    return f"{name} ({number})"


def _flat(facts: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        flat |= _flat(value, f"{name}: ") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _pairs(title: str, facts: dict[str, Any]) -> Table:
    said = {name.replace("_", " "): f"{value:,}" if isinstance(value, int) else str(value) for name, value in facts.items()}
    return _table(title, ("", ""), said.items())


def _table(title: str, head: tuple[str, ...], rows: Any) -> Table:
    table = Table(title=Text(title) if title else None, title_justify="left", show_header=any(head), box=None, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


if __name__ == "__main__":
    sys.exit(main())
