"""The verb `train`: a new run, one that continues, or one on everything with what another run chose."""

from copy import copy
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro
from rich.console import RenderableType
from tyro.conf import OmitArgPrefixes, Positional, Suppress

from unskew.cli.shared import File, OnDevice, RunVerb, Verb, notify, pairs, table, together, use_threads
from unskew.core.config import names_of
from unskew.core.errors import BadInput
from unskew.core.ranks import ranks
from unskew.data.log.log import Log
from unskew.data.log.split import Split, Splitting, split

if TYPE_CHECKING:
    from unskew.api.model import Model
    from unskew.training.run_card import RunCard

V = TypeVar("V", bound=Verb)

DEFAULT = "pulse"


@dataclass(frozen=True, kw_only=True)
class Train(OnDevice, RunVerb):
    """Train a model on a prepared log.

    Ctrl-C saves before it stops, and `unskew train --resume RUN` continues and ends with the same weights,
    bit for bit. A stopped run can be evaluated and recommended from as it is.
    """

    data: Positional[Annotated[Path | None, tyro.conf.arg(metavar="DATA")]] = None
    """A folder that `unskew prepare` made. A resumed run knows it."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The folder of the new run."""
    model: str = DEFAULT
    """Which model is trained; `unskew models` lists them. Its own settings are flags, too."""
    preset: str | None = None
    """A named set of settings to start from, or several between commas: `paper` has the values of the model's
    paper where the defaults differ, `without-ips` and others are ablations (`unskew models` lists them).
    Flags go before presets."""
    config: File = None
    """Model, settings and split as `unskew tune` wrote them. Flags go before the file."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Continue this run. It needs no other flag; a larger --epochs (and --patience) adds epochs."""
    refit: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Train on all of DATA, without validation and test, with the settings of this run and with what its
    validation set chose: the number of epochs, and settings that no gradient learns."""
    until: Annotated[str, tyro.conf.arg(metavar="{end,test,DATE}")] = "end"
    """With --refit: where the data ends that is learned from. `end` is its own end and `test` the begin of
    the test set; a date or a quantile may be given, too. What follows is a test set."""
    threads: int | None = None
    """How many threads torch uses; by default its own choice. The same number gives the same weights."""
    tensorboard: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Also write the records for TensorBoard, into a folder of this run alone (extra `tensorboard`)."""
    events_in: Literal["auto", "run", "folder"] = "auto"
    """Where the run keeps the events that it recommends from: in a copy of its own (`run`), or only in DATA
    (`folder`), which must then stay where it is. `auto` is `folder` for a log of a million rows and more."""
    # Flags of the model that is named, and of its training: see `train_of`. A refitted run has them already.
    splitting: Suppress[Any] = None
    training: Suppress[Any] = None
    settings: Suppress[Any] = None

    def run(self) -> None:
        with together():
            self._run()

    def _run(self) -> None:
        from unskew.training.run import CHECKPOINT, check_new_run

        use_threads(self.threads)
        self.use_device()
        if self.resume is not None and (self.refit is not None or self.out is not None):
            raise BadInput("--resume RUN continues in RUN itself: leave --out and --refit away")
        folder = self.resume or self.out
        if self.data is None and self.resume is None:
            raise BadInput("expected DATA, a folder that `unskew prepare` made")
        if folder is None:
            raise BadInput("expected --out RUN, the folder of the new run (or --resume RUN to continue one)")
        if self.resume is None:
            ranks().first(partial(check_new_run, folder))  # before the data is read
        self._check_settings_flags()
        try:
            trained, cut = self._refit(folder) if self.refit is not None else self._train(folder)
        except KeyboardInterrupt:
            if (folder / CHECKPOINT).is_file():
                notify(f"what was learned is saved; go on with `unskew train --resume {folder}`")
            raise
        if ranks().is_first:
            self._report(trained, cut, folder)

    def _check_settings_flags(self) -> None:
        """Refuse flags that say nothing about this run."""
        for flag, value in (("--preset", self.preset), ("--config", self.config)):
            if value is not None and (self.resume is not None or self.refit is not None):
                raise BadInput(f"{flag} is for new runs; this one has its settings already")
        if self.until != "end" and self.refit is None:
            raise BadInput(f"--until {self.until} goes with --refit RUN")
        if self.preset is not None and self.config is not None:
            raise BadInput(f"{self.config} has all settings: leave --preset away")

    def _train(self, folder: Path) -> "tuple[Model, Split]":
        from unskew.api.model import Model
        from unskew.training.run import read_config, read_records

        chosen, before = None, 0
        if self.resume is not None:
            stored, before = read_config(folder), len(read_records(folder))
            if self.model != stored.model:
                raise BadInput(f"{folder}: this run was begun with model {stored.model}, not {self.model}")
            log, chosen = stored.open_log(self.data), stored.chosen
        else:
            assert self.data is not None
            log = Log.open(self.data)
        cut = split(log, **asdict(self.splitting))
        if not cut.rows("valid").size:
            notify(
                "this split has no validation set, so nothing is chosen: training runs through all "
                f"{_plural(self.training.epochs, 'epoch')}, and the last weights are kept (--refit RUN takes "
                "over what another run chose)"
            )
        model = Model(self.model, self.settings, self.training)
        more: dict[str, Any] = {"on_record": self._on_record(), "chosen": chosen, "events_in": self.events_in}
        model.fit(cut, folder, resume=self.resume is not None, **more)
        if self.resume is not None and len(model.records) == before:
            notify("this run has ended, so nothing was done; --epochs (and --patience) add to it")
        return model, cut

    def _refit(self, folder: Path) -> "tuple[Model, Split]":
        from unskew.api.create import load

        assert self.refit is not None
        assert self.data is not None
        before = load(self.refit)
        more: dict[str, Any] = {"on_record": self._on_record(), "events_in": self.events_in}
        model = before.refit(Log.open(self.data), folder, until=self.until, **more)
        chosen = [_plural(model.training.epochs, "epoch")] if model.records else []
        chosen += [" ".join(_chosen_in_words(model, *each)) for each in model.chosen.items()]
        learned, left = (
            ("everything", "no part is left to evaluate this run on")
            if self.until == "end"
            else ("what is before the test set", "the test set can be evaluated")
        )
        notify(
            f"trained on {learned}, with {', '.join(chosen) or 'nothing to choose'}, as {self.refit} has "
            f"it; {left}"
        )
        return model, model.split

    def _on_record(self) -> Any:
        from unskew.integrations import tensorboard

        return (
            None if self.tensorboard is None else tensorboard.track(self.tensorboard, self.resume is not None)
        )

    def _report(self, trained: "Model", cut: Split, folder: Path) -> None:
        """Show what was learned, epoch by epoch, and say what a user should know about it."""
        from unskew.training.run import read_card

        if warning := _weights_warning(trained, cut):
            notify(warning)
        card, title = read_card(folder), f"{trained.name} -> {folder}"
        if not trained.records and trained.name.startswith("debiased-"):
            its = trained.name.removeprefix("debiased-")
            why = "is not trained by gradients, so there is no loss to weight"
            notify(f"{its} {why}: this run is {its} as it is")
        if not card.finished:
            notify(
                "not finished: a validation metric was still rising; more --epochs or a larger --patience "
                "would go on"
            )
        records = [record.to_json() for record in trained.records]
        document = {"run": str(folder), **card.to_json(), "records": records}
        self.show(document, _epochs_table(trained, card, title))


def _epochs_table(trained: "Model", card: "RunCard", title: str) -> RenderableType:
    from unskew.training.trainer import METRIC

    epochs = [record for record in trained.records if record.valid]
    if not epochs:
        chosen: dict[str, Any] = {}
        for by, state in card.chosen.items():
            words = (_chosen_in_words(trained, *each) for each in state.items())
            chosen |= {f"{by}: {name}": value for name, value in words}
        return pairs(title, chosen or {"epochs": len(trained.records)})
    versions, losses = list(epochs[0].valid), list(epochs[-1].losses)
    head = ("epoch", *losses, *(f"{version} {METRIC}" for version in versions))
    rows = []
    for record in epochs:
        scores = []
        for version, metrics in record.valid.items():
            debias = f" debias {metrics['debias']:g}" if "debias" in metrics else ""
            is_best = card.best[version]["epoch"] == record.epoch
            scores.append(f"{metrics[METRIC]:.4f}{debias}{'*' if is_best else ''}")
        shown = (f"{record.losses[name]:.4f}" if name in record.losses else "-" for name in losses)
        rows.append((str(record.epoch), *shown, *scores))
    return table(f"{title} (* the best epoch by each validation metric)", head, rows)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _chosen_in_words(trained: "Model", name: str, value: float) -> tuple[str, str]:
    """The name of a setting that validation chose, and its value: a span of time is in days if the times of
    the log are dates."""
    shown = trained.known_log.clock.in_words(value) if name.endswith("_ticks") else f"{value:g}"
    return name.removesuffix("_ticks").removesuffix("_now").replace("_", " "), shown


def _weights_warning(trained: "Model", cut: Split) -> str:
    """A sentence if the propensity weights of a model do nothing, or if a few of them do all; for a model
    that removes exposure in another way, how much it removes."""
    from unskew.diagnostics.propensity.health import training_weights

    seen = training_weights(trained, cut)
    if seen is None:
        return ""
    is_relevant = trained.records if seen.exposure else seen.finding.kind.is_warning
    return seen.finding.sentence if is_relevant else ""


def flags_of(arguments: list[str], flag: str) -> list[str]:
    """The values of a flag that may be given several times, before the command line is parsed."""
    values = [value for name, value in pairwise(arguments) if name == flag]
    return values + [argument.split("=", 1)[1] for argument in arguments if argument.startswith(f"{flag}=")]


def flag_of(arguments: list[str], flag: str) -> str | None:
    """The value of a flag, before the command line is parsed."""
    return next(reversed(flags_of(arguments, flag)), None)


def _path_of(arguments: list[str], flag: str) -> Path | None:
    """The folder or file that a flag names, before the command line is parsed."""
    value = flag_of(arguments, flag)
    return None if value is None or value.startswith("-") else Path(value)


def model_of(arguments: list[str]) -> str:
    """The model that a command line names; a run that is resumed or refitted names its own."""
    run = _path_of(arguments, "--resume") or _path_of(arguments, "--refit")
    if run is not None:
        from unskew.training.run import read_config

        return read_config(run).model
    named, file = flag_of(arguments, "--model"), _path_of(arguments, "--config")
    if file is None:
        return named or DEFAULT
    from unskew.tuning.tuning_study import read_best

    name = read_best(file)[0].name
    if named not in (None, name):
        raise BadInput(f"{file}: these are settings of {name}, not of {named}; leave --model away")
    return name


def train_of(arguments: list[str]) -> type[Train]:
    """The verb with the flags of the model that was named. The flags of a resumed run have its settings as
    their defaults, so that what is given and differs can be named."""
    if flag_of(arguments, "--refit") is not None:
        return Train
    name, run, file = model_of(arguments), _path_of(arguments, "--resume"), _path_of(arguments, "--config")
    defaults = defaults_of(name, flag_of(arguments, "--preset")) | {"model": name}
    if run is not None:
        from unskew.training.run import read_config

        stored = read_config(run)
        defaults |= {"settings": stored.config, "training": stored.training, "splitting": stored.split}
    elif file is not None:
        from unskew.tuning.tuning_study import read_best

        model, splitting = read_best(file)
        defaults |= {"settings": model.config, "training": model.training, "splitting": splitting}
    return with_flags(Train, name, defaults)


def defaults_of(name: str, preset: str | None) -> dict[str, Any]:
    """The parts of a verb that trains a model, as they are unless flags say otherwise."""
    from unskew.api.create import create_model

    model = create_model(name, preset=preset)
    return {"settings": model.config, "training": model.training, "splitting": Splitting()}


def with_flags(verb: type[V], name: str, defaults: dict[str, Any]) -> type[V]:
    """A verb with the flags of a model, of its training and of the split, and with these defaults."""
    from unskew.models.base import Training, model_named

    kind = model_named(name)
    names = names_of(kind.Config)
    everything = [*names, *names_of(Training), *names_of(Splitting), *(f.name for f in fields(verb))]
    for setting in names:
        if everything.count(setting) > 1:
            raise BadInput(
                f"{name}: {setting!r} is a setting of two of its parts, and a flag can mean only one; "
                f"{verb.__name__.lower()} it from Python"
            )
    flags: Any = OmitArgPrefixes
    hidden: Any = Suppress
    types = {"settings": flags[kind.Config], "training": flags[Training], "splitting": flags[Splitting]}
    types |= {"model": str, "given": hidden[Any]}
    return extended(verb, {part: (types[part], default) for part, default in defaults.items()})


def extended(verb: type[V], flags: dict[str, tuple[Any, Any]]) -> type[V]:
    """A verb with more flags: the type and the default of each."""
    parts = [(name, kind, field(default_factory=partial(copy, it))) for name, (kind, it) in flags.items()]
    text = {"__doc__": verb.__doc__}
    return make_dataclass(verb.__name__, parts, bases=(verb,), frozen=True, kw_only=True, namespace=text)
