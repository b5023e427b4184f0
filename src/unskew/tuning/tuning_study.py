"""Where a study is kept, so that it can be continued and shared, and the file of its best settings."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

from unskew.api.create import create_model
from unskew.api.model import Model
from unskew.core.atomic_files import write_text
from unskew.core.config import Document, check_type, meant
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.split import Splitting
from unskew.training.run import differences
from unskew.tuning.search_space import Space

FORMAT = 1
STARTUP = 5  # trials that are finished before any other is given up
RESULT = ("state", "value", "epochs", "reason")  # what is stored of a trial that has ended
WAIT = 60  # seconds that a process waits for another one that writes into the same SQLite file


def address_of(storage: str | None, out: Path | None) -> str | None:
    """The URL of a study: what was given, or an SQLite file beside the output; None is the memory."""
    if storage is not None and "://" not in storage:
        raise BadInput(f"storage {storage!r}: expected a URL, such as sqlite:///study.db", field="storage")
    if out is not None and out.suffix != ".json":
        raise BadInput(f"{out}: expected a name that ends with .json")
    if out is None:
        return storage
    file = out.with_suffix(".db").resolve()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{out}: cannot write there ({error.strerror})") from None
    return f"sqlite:///{file}" if storage is None else storage


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return url.partition("://")[0] + "://..."


@contextmanager
def open_study(
    about: dict[str, Any], url: str | None, out: Path | None, name: str, space: Space
) -> Iterator[Any]:
    """The study of this name, new or as it was left; one of something else is refused. Optuna itself prints
    nothing meanwhile.

    about: what the study is of.
    out: the file of its best settings. If it exists and the study does not, the study begins with the trials
        of the file, so the file alone is enough to continue elsewhere.
    space: what is searched.
    """
    import optuna

    listed = _study_in(out) if out is not None and out.exists() else None
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kept: Any = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            kept = optuna.storages.InMemoryStorage() if url is None else _open_database(url)
            warm_up = max(2, space.epochs // 10)
            pruner = optuna.pruners.MedianPruner(STARTUP, warm_up, n_min_trials=STARTUP)
            there = name in optuna.get_all_study_names(kept)
            now = json.loads(json.dumps(about))
            earlier = [] if there or listed is None else _trials_of(listed, str(out), now, space)
            study = optuna.create_study(
                study_name=name, storage=kept, pruner=pruner, direction="maximize", load_if_exists=True
            )
            where = "the study" if url is None else f"the study {name!r} in {without_password(url)}"
            if there:
                _check_same(where, study.user_attrs.get("about"), now)
            study.set_user_attr("about", now)
            study.add_trials(earlier)
            try:
                yield study
            except optuna.exceptions.StorageInternalError as error:
                reason = str(error.__cause__ or error).partition("\n")[0]
                raise UnskewError(
                    f"{where} cannot be reached any more ({reason}); what ended stays"
                ) from None
    finally:
        optuna.logging.set_verbosity(before)
        if url is not None and kept is not None:
            kept.remove_session()
            kept.engine.dispose()


def _study_in(out: Path) -> Document:
    """A file of best settings that lists its trials; any other file would be overwritten."""
    try:
        document = _document(out)
    except BadInput:
        document = {}
    if not isinstance(document.get("study"), dict) or not isinstance(document.get("finished_trials"), list):
        raise BadInput(
            f"{out}: exists already, and lists no trials to continue from; choose another", field="out"
        )
    return document


def _trials_of(document: Document, out: str, about: Document, space: Space) -> list[Any]:
    """The trials that a file of best settings lists, as Optuna takes them."""
    from optuna.trial import TrialState, create_trial

    _check_same(f"the study in {out}", document["study"], about)
    states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    try:
        return [
            create_trial(
                state=states[row["state"]],
                value=row["value"] if row["state"] == "complete" else None,
                params=row["settings"],
                distributions=space.distributions(),
                intermediate_values=dict(enumerate(row["curve"], 1)),
                user_attrs={"result": {name: row[name] for name in RESULT}},
            )
            for row in document["finished_trials"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{out}: its trials cannot be read ({error!r}); choose another", field="out") from None


def _open_database(url: str) -> Any:
    """A database that Optuna can use."""
    from optuna.exceptions import OptunaError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    waiting = {"connect_args": {"timeout": WAIT}} if url.startswith("sqlite") else {}
    try:
        return RDBStorage(url, engine_kwargs=waiting)
    except (ImportError, ValueError, RuntimeError, OSError, OptunaError, SQLAlchemyError) as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise BadInput(f"storage {without_password(url)}: cannot be opened ({reason})") from None


def _check_same(where: str, before: dict[str, Any] | None, now: dict[str, Any]) -> None:
    """Refuse to continue a study of something else: its values say nothing about this."""
    if before is None:
        raise BadInput(f"{where} was not made by `unskew tune`; choose another name (--study)")
    advice = "choose another --out, --storage or --study"
    for part in ("format", "model", "split", "hash", "train_end", "seed", "fixed", "searched"):
        old, new = before.get(part), now[part]
        if part == "hash" and old != new:
            raise BadInput(f"{where} was begun on other data; {advice}")
        for entry, was, now_value in differences({part: old}, {part: new}):
            first, second = ("unset" if value is None else value for value in (was, now_value))
            raise BadInput(f"{where} was begun with {entry} {first}, not {second}; {advice}")


# The file


def write_best(file: Path, document: Document) -> None:
    """Write the best settings, whole or not at all."""
    write_text(file, json.dumps(document, indent=1) + "\n")


def read_best(file: Path) -> tuple[Model, Splitting]:
    """The model that such a file describes, and the split that it was tuned for. One that was written by hand
    needs no more than `model` and `settings`."""
    document: Document = {"split": {}} | _document(file)
    for name, kind in (("model", str), ("settings", dict), ("split", dict)):
        if not isinstance(document.get(name), kind):
            raise BadInput(f"{file}: not a configuration that `unskew tune` writes (no {name})")
    try:
        return create_model(document["model"], document["settings"]), _splitting(document["split"])
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None


def _document(file: Path) -> Document:
    """What a file of best settings holds; empty if it is JSON of another kind."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise BadInput(f"{file}: not JSON ({error})") from None
    return document if isinstance(document, dict) else {}


def _splitting(document: Document) -> Splitting:
    hints = get_type_hints(Splitting)
    for name, value in document.items():
        if name not in hints:
            raise BadInput(f"a split has no setting {name!r}{meant(name, hints)}")
        check_type(name, value, hints[name])
    lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
    return Splitting(**document | lists)
