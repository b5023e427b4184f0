"""The command line. A verb is a small dataclass; its flags are the fields of the settings that the Python
functions take.

What needs torch is imported by the verbs that need it: it takes seconds.
"""

import contextlib
import io
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import tyro

from unskew.cli.bench import Bench
from unskew.cli.compare import Compare
from unskew.cli.data import Audit, Inspect, Prepare, Simulate
from unskew.cli.demo import Demo
from unskew.cli.doctor import Doctor
from unskew.cli.erase import Erase
from unskew.cli.evaluate import Evaluate
from unskew.cli.experiment import Experiment
from unskew.cli.export import Export
from unskew.cli.ground_truth import GroundTruth, simulate_of
from unskew.cli.hints import check_flags, check_words, one_line
from unskew.cli.items import Items
from unskew.cli.monitor import Monitor
from unskew.cli.playground import Playground
from unskew.cli.propensity import Propensity
from unskew.cli.report import Report
from unskew.cli.runs import Models, Recommend
from unskew.cli.serve import Serve
from unskew.cli.shared import joined_help, messages, notify
from unskew.cli.store import Store
from unskew.cli.train import Train, flags_of, train_of
from unskew.cli.tune import Tune, tune_of
from unskew.cli.update import Update
from unskew.core.errors import BadInput, UnskewError
from unskew.core.imports import import_file
from unskew.core.progress import shown_on

VERBS: dict[str, Callable[..., Any]] = {
    "prepare": Prepare,
    "inspect": Inspect,
    "audit": Audit,
    "simulate": Simulate,
    "train": Train,
    "tune": Tune,
    "evaluate": Evaluate,
    "compare": Compare,
    "ground-truth": GroundTruth,
    "recommend": Recommend,
    "export": Export,
    "propensity": Propensity,
    "store": Store,
    "items": Items,
    "serve": Serve,
    "monitor": Monitor,
    "update": Update,
    "erase": Erase,
    "experiment": Experiment,
    "bench": Bench,
    "report": Report,
    "models": Models,
    "doctor": Doctor,
    "demo": Demo,
    "playground": Playground,
}
# Verbs whose flags depend on the model, or the kind of world, that is named.
BY_ARGUMENTS: dict[str, Callable[[list[str]], Callable[..., Any]]] = {
    "train": train_of,
    "simulate": simulate_of,
    "tune": tune_of,
}


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the job failed, 2 wrong use or bad input; a verb may have more (`update`)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"unskew {version('unskew')}")
        return 0
    signal.signal(signal.SIGTERM, _stop)
    try:
        verb = _verb_of(arguments)
        with shown_on(messages, arguments[0]):
            return int(verb.run() or 0)
    except UnskewError as error:
        messages.print(f"unskew: {error}", style="bold red" if messages.is_terminal else None, soft_wrap=True)
        return error.exit_code
    except (KeyboardInterrupt, duckdb.InterruptException):
        return _report_stop()
    except RuntimeError as error:
        # DuckDB passes an interrupt on as its own exception, or as this one.
        if "Query interrupted" not in str(error):
            raise
        return _report_stop()
    except PermissionError as error:
        notify(f"unskew: {error.filename}: {error.strerror}")
        return 2
    except BrokenPipeError:  # the reader of our output has gone, as in `unskew ... | head`
        sys.stderr.close()
        return 0


def _verb_of(arguments: list[str]) -> Any:
    """The verb that a command line asks for, with the flags of the model or world that it names."""
    for file in flags_of(arguments, "--import"):
        import_file(Path(file))
    check_words(arguments, VERBS)
    name, verbs = arguments[0] if arguments else "", dict(VERBS)
    if name in BY_ARGUMENTS:
        verbs[name] = BY_ARGUMENTS[name](arguments)
    if name in verbs:
        joined_help(verbs[name])
        check_flags(arguments, verbs[name])
    return _parse(arguments, verbs)


def _parse(arguments: list[str], verbs: dict[str, Callable[..., Any]]) -> Any:
    """The verb that a command line asks for. What the parser complains about in a box becomes one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                verbs,
                prog="unskew",
                description=f"unskew {version('unskew')}: unbiased next-item recommendation from biased "
                "interaction logs.",
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as left:
        if not left.code:  # help was asked for
            raise
    verb = f" {arguments[0]}" if arguments and arguments[0] in verbs else ""
    raise BadInput(f"{one_line(complaint.getvalue())}; see `unskew{verb} --help`")


def _report_stop() -> int:
    messages.print("unskew: stopped")
    return 130


def _stop(number: int, frame: object) -> None:
    """Leave as on Ctrl-C, so that scratch folders are removed."""
    raise KeyboardInterrupt
