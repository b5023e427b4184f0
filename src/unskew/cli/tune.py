"""The verb `tune`: search the settings of a model on the validation set."""

from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional, Suppress

from unskew.cli.shared import Data, RunVerb, command_line, notify, pairs, split_of, table, use_threads
from unskew.cli.train import defaults_of, flag_of, with_flags
from unskew.core.config import flat
from unskew.core.errors import BadInput

if TYPE_CHECKING:
    from unskew.tuning.tuner import Tuned


@dataclass(frozen=True, kw_only=True)
class Tune(RunVerb):
    """Search the settings of a model on the validation set. The test set is cut off before it begins.

    A setting that a flag names has that value; the others that have a range are searched. The first trial has
    the model's own settings. The same command continues a study that was stopped, by Ctrl-C or otherwise.
    `unskew train DATA --out RUN --config FILE` trains with what was found.
    """

    model: Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]]
    """Which model is tuned; `unskew models` lists them. Its own settings are flags, too."""
    data: Positional[Data]
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.json")]
    """The file of the best settings. It is written after each trial that ends."""
    trials: int | None = None
    """How many trials the study has in all, those of earlier calls included; by default 20 where there is
    no budget."""
    budget: Annotated[float | None, tyro.conf.arg(metavar="MINUTES")] = None
    """The minutes after which this call ends. The trial that is under way ends with its epoch."""
    storage: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Where the study is, so that several machines can share it: any address that Optuna knows. By default an
    SQLite file beside the output."""
    study: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The name of the study there; by default that of the model."""
    preset: str | None = None
    """A named set of settings to begin with, or several between commas. They are searched like any others."""
    threads: int | None = None
    """How many threads torch uses; by default its own choice. The same number gives the same values."""
    # Flags of the model, of its training and of the split, and which of them were given: see `tune_of`.
    splitting: Suppress[Any] = None
    training: Suppress[Any] = None
    settings: Suppress[Any] = None
    given: Suppress[Any] = ()

    def run(self) -> None:
        from unskew.models.base import model_named
        from unskew.tuning.search_space import BeforeTest
        from unskew.tuning.tuner import tune

        use_threads(self.threads)
        if not isinstance(self.settings, model_named(self.model).Config):
            raise BadInput("expected MODEL and DATA in front of all flags")
        every = flat(self.settings) | flat(self.training)
        try:
            result = tune(
                self.model,
                BeforeTest(split_of(self.data, self.splitting)),
                {name: value for name, value in every.items() if name in self.given},
                preset=self.preset,
                trials=self.trials,
                budget=self.budget,
                storage=self.storage,
                out=self.out,
                study=self.study,
                on_trial=_print_trial,
                command=command_line(),
            )
        except KeyboardInterrupt:
            kept = f"{self.out} has the best so far" if self.out.is_file() else "no trial has ended"
            notify(f"{kept}; the same command continues")
            raise
        self._report(result)

    def _report(self, result: "Tuned") -> None:
        document, searched = result.document, result.document["searched"]
        rows = [
            {name: value for name, value in row.items() if name not in searched}
            | {"settings": {name: row[name] for name in searched}}
            for row in result.trials.to_pylist()
        ]
        shown = [
            (
                f"{row['number']}{'*' if row['number'] == document['trial'] else ''}",
                "–" if row["value"] is None else f"{row['value']:.4f}",
                row["state"],
                str(row["epochs"] or "–"),
                _settings(row) if row["state"] != "failed" else f"{_settings(row)}: {row['reason']}",
            )
            for row in rows
        ]
        gain = "" if document["defaults"] is None else f" (the defaults {document['defaults']:.4f})"
        found = f"{result.select_by} {document['metric']} {result.value:.4f}{gain}"
        self.show(
            {"file": str(self.out), **document, "rows": rows},
            pairs(f"{result.model} -> {self.out}: {found}", result.best),
            table("", ("trial", document["metric"], "", "epochs", "settings"), shown),
        )


def _print_trial(row: dict[str, Any]) -> None:
    """Print a line about a trial that has ended."""
    value = "" if row["value"] is None else f" {row['value']:.4f}"
    why = f" ({row['reason']})" if row["reason"] else ""
    notify(f"trial {row['number']}: {row['state']}{value}{why}; {_settings(row)}")


def _settings(row: dict[str, Any]) -> str:
    values = {
        name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row["settings"].items()
    }
    return ", ".join(f"{name} {value}" for name, value in values.items())


def tune_of(arguments: list[str]) -> type[Tune]:
    """The verb with the flags of the model that was named, and with the names of those that were given."""
    own = {f"--{field.name}" for field in fields(Tune) if field.name != "json"} | {"--import"}
    words = [word for before, word in pairwise(arguments) if before not in own and not word.startswith("-")]
    if not words:
        return Tune
    from unskew.models.base import model_named

    name = next(filter(_is_model, words), words[0])
    model_named(name)  # or an error that says which models there are
    flags = [word.split("=", 1)[0] for word in arguments[1:] if word.startswith("--")]
    given = tuple(flag.removeprefix("--").replace("-", "_") for flag in flags)
    defaults = defaults_of(name, flag_of(arguments, "--preset")) | {"given": given}
    return with_flags(Tune, name, defaults)


def _is_model(word: str) -> bool:
    from unskew.models.base import model_named

    with suppress(BadInput):
        return bool(model_named(word))
    return False
