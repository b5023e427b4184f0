"""The verbs of runs: train, recommend, look at propensities, list the models."""

from dataclasses import asdict, dataclass, field, fields, make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, Suppress

from unskew.cli.shared import (
    Data,
    RunArg,
    Verb,
    flat,
    inspection_table,
    messages,
    pairs,
    split_of,
    split_of_run,
    table,
    write_page,
)
from unskew.config import names_of
from unskew.data.split import Split, Splitting
from unskew.errors import BadInput
from unskew.propensity.health import health, logged_truth


@dataclass(frozen=True, kw_only=True)
class Train(Verb):
    """Train a model; stopped at any moment, `--resume` goes on and ends with the same weights, bit for
    bit."""

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
    training: Suppress[Any] = None  # of the chosen model, as its config: see `train_of`
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
        cut, data = split_of(self.data, self.splitting), str(self.data.resolve())
        _, trainer = train(
            cut, self.model, self.config, self.training, self.out, self.resume, data, on_record
        )
        rounds = [record for record in trainer.records if "valid" in record]
        said, title = card(self.out), f"{self.model} -> {self.out}"
        versions = list(rounds[0]["valid"]) if rounds else []
        rows = [
            (
                str(r["round"]),
                *(f"{r['losses'][name]:.4f}" for name in r["losses"]),
                *(_scored(r, version, said["best"][version]["round"]) for version in versions),
            )
            for r in rounds
        ]
        head = (
            "round",
            *(rounds[0]["losses"] if rounds else ()),
            *(f"{version} {METRIC}" for version in versions),
        )
        # A model without rounds: what validation chose.
        chosen = {
            f"{by}: {_named(name)}": _span(name, value, cut)
            for by, state in said["chosen"].items()
            for name, value in state.items()
        }
        shown = (
            table(f"{title} (* the best round by each version of the validation part)", head, rows)
            if rounds
            else pairs(title, chosen)
        )
        if not trainer.stages and self.model.startswith("debiased-"):
            its = self.model.removeprefix("debiased-")
            messages.print(
                f"{its} is not trained by gradients, so there is no loss to weight: this run is {its} as it "
                "is",
                soft_wrap=True,
            )
        self.show({"run": str(self.out), **said, "records": trainer.records}, shown)


def _scored(record: dict[str, Any], version: str, best: int) -> str:
    from unskew.train import METRIC

    return f"{record['valid'][version][METRIC]:.4f}{'*' if best == record['round'] else ''}"


def model_of(arguments: list[str]) -> str:
    named = [value for flag, value in pairwise(arguments) if flag == "--model"]
    named += [argument.split("=", 1)[1] for argument in arguments if argument.startswith("--model=")]
    return named[-1] if named else "deps"


def train_of(arguments: list[str]) -> type[Train]:
    """The verb with the flags of the model that was named."""
    from unskew.models.base import model_named
    from unskew.train import Training

    name = model_of(arguments)
    kind = model_named(name)
    names = names_of(kind.Config)
    everything = [*names, *names_of(Training), *names_of(Splitting), *(f.name for f in fields(Train))]
    for setting in names:
        if everything.count(setting) > 1:
            raise BadInput(
                f"{name}: {setting!r} is a setting of two of its parts, and a flag can mean only one; train "
                "it from Python"
            )
    flags: Any = OmitArgPrefixes
    config = ("config", flags[kind.Config], field(default_factory=kind.Config))
    training = ("training", flags[Training], field(default_factory=lambda: Training(**kind.recipe)))
    return make_dataclass(
        "Train",
        [config, training],
        bases=(Train,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": Train.__doc__},
    )


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
    """Which version of the validation part chose the weights that recommend; by default what training was
    told."""

    def run(self) -> None:
        if (self.user is None) == (not self.history):
            raise BadInput("expected --user ID, or --history ITEM once per item, and not both")
        from unskew.api import load

        trained = load(self.folder)
        if self.choose_by is not None:
            trained.chosen_by(self.choose_by)
        found = (
            trained.recommend(users=[self.user], k=self.k, include_seen=self.include_seen)
            if self.user is not None
            else trained.recommend(histories=[self.history], k=self.k, include_seen=self.include_seen)
        )
        listed = found.table.to_pylist()
        shown = [
            (str(row["rank"]), str(row["item_id"]), f"{row['score']:.4f}", str(row.get("title", "")))
            for row in listed
        ]
        counts = {"unknown_users": found.unknown_users, "skipped_items": found.skipped_items}
        self.show({"recommendations": listed, **counts}, table("", ("rank", "item", "score", "title"), shown))
        for user in found.users_unknown:
            messages.print(
                f"user {user!r} is not in the log of this run, so this is what an empty history gets",
                soft_wrap=True,
            )
        if found.items_unknown:
            messages.print(
                f"skipped, not in the log of this run: {', '.join(map(repr, found.items_unknown))}",
                soft_wrap=True,
            )


@dataclass(frozen=True, kw_only=True)
class PropensityHealth(Verb):
    """Calibration, clipping, weights and balance of a run's propensities, against the truth where it is
    known."""

    folder: Positional[RunArg]
    data: Annotated[Path | None, tyro.conf.arg(metavar="DATA")] = None
    """Where the prepared data is, if it has moved."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write one self-contained HTML file with plots (extra `report`)."""

    def run(self) -> None:
        from unskew.api import load

        trained = load(self.folder)
        clip = trained.propensity.clip
        cut = split_of_run(self.folder, self.data)
        found = health(cut, trained.propensities(cut.log), clip, logged_truth(cut.log))
        if self.html is not None:
            from unskew.report.health_page import health_page

            write_page(self.html, health_page(found, self.folder.name))
        self.show(found.as_dict(), inspection_table(found), table("", *found.decile_table()))


@dataclass(frozen=True, kw_only=True)
class PropensityExport(Verb):
    """Write both propensities, the weight and the part (train, valid, test) of every row, with your ids, for
    any other library."""

    folder: Positional[RunArg]
    data: Positional[Data]
    out: Annotated[
        Path, tyro.conf.arg(metavar="FILE", help="The Parquet file to write; it must not be there yet.")
    ]

    def run(self) -> None:
        from unskew.api import load

        trained = load(self.folder)
        clip = trained.propensity.clip
        parts = trained.save_propensities(split_of_run(self.folder, self.data).log, self.out)
        document = {"file": str(self.out), "run": str(self.folder), "model": trained.name, "clip": clip}
        document |= {"rows": sum(parts.values()), "parts": parts}
        self.show(document, pairs(f"{self.folder} -> {self.out}", flat(document)))


@dataclass(frozen=True, kw_only=True)
class Propensity:
    """Look at a run's propensities (health), or take their weights elsewhere (export)."""

    verb: OmitSubcommandPrefixes[
        Annotated[PropensityHealth, tyro.conf.subcommand("health")]
        | Annotated[PropensityExport, tyro.conf.subcommand("export")]
    ]

    def run(self) -> None:
        self.verb.run()


@dataclass(frozen=True, kw_only=True)
class Models(Verb):
    """List all models with their papers and settings."""

    def run(self) -> None:
        from unskew.models.base import MODELS
        from unskew.models.debiased import Weighting
        from unskew.train import Training

        rows = [
            (name, kind.paper, ", ".join(f"{f.name} {f.default}" for f in fields(kind.Config)))
            for name, kind in sorted(MODELS.items())
        ]
        listed = {
            name: {
                "paper": kind.paper,
                "config": asdict(kind.Config()),
                "training": asdict(Training(**kind.recipe)),
            }
            for name, kind in sorted(MODELS.items())
        }
        any_of_them = "any of them, weighted by inverse propensities (Xu et al., CIKM 2022)"
        rows.append(
            ("debiased-MODEL", any_of_them, ", ".join(f"{f.name} {f.default}" for f in fields(Weighting)))
        )
        document = {"models": listed, "debiased": {"paper": any_of_them, "config": asdict(Weighting())}}
        self.show(document, table("", ("model", "paper", "settings"), rows))


def _named(name: str) -> str:
    return name.removesuffix("_ticks").replace("_", " ")


def _span(name: str, value: float, cut: Split) -> str:
    """A number that validation chose; a span of time in days, where the log's times are dates."""
    return cut.log.clock.in_words(value) if name.endswith("_ticks") else f"{value:g}"
