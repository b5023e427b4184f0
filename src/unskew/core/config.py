"""Settings are frozen dataclasses, written once: they are the keywords of the Python functions and the flags
of the command line. The text below a field explains it in both, and its range stands in its type."""

import ast
import difflib
import functools
import inspect
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from unskew.core.errors import BadInput

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")

Settings = dict[str, Any]  # values by the names of settings
Document = dict[str, Any]  # a JSON object


class configured(Generic[P, C]):  # noqa: N801 (used as a decorator)
    """`@configured(Settings)` turns `f(source, settings)` into `f(source, *, <the fields of Settings>)`."""

    def __init__(self, settings: Callable[P, C]) -> None:
        self.settings = settings

    @overload
    def __call__(self, function: Callable[[C], R]) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[[A, C], R]) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, C], R]) -> Callable[Concatenate[A, B, P], R]: ...

    def __call__(self, function: Callable[..., R]) -> Callable[..., R]:
        hints = get_type_hints(self.settings)
        given = list(inspect.signature(function).parameters.values())[:-1]
        fields = list(inspect.signature(self.settings).parameters.values())
        result = inspect.signature(function).return_annotation
        signature = inspect.Signature([*given, *fields], return_annotation=result)
        allowed = {parameter.name for parameter in (*given, *fields)}

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> R:
            for name in keywords:
                if name not in allowed:
                    near = meant(name, allowed)
                    raise BadInput(f"{function.__name__} has no setting {name!r}{near}", field=name)
            arguments = signature.bind(*args, **keywords).arguments
            leading = [arguments.pop(parameter.name) for parameter in given]
            arguments = {name: joined_names(value, hints[name]) for name, value in arguments.items()}
            for name, value in arguments.items():
                check_type(name, value, hints[name])
            return function(*leading, self.settings(**arguments))  # type: ignore[call-arg]

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = _with_parameters(inspect.cleandoc(function.__doc__ or ""), explained(self.settings))
        return call


def joined_names(value: Any, hint: Any) -> Any:
    """A list of names as one text with commas between them, for a setting that is text; anything else as it
    is."""
    several = isinstance(value, list | tuple) and all(isinstance(part, str) for part in value)
    if not several or fits(value, hint) or any("," in part for part in value):
        return value
    return ",".join(value) if fits(",".join(value), hint) else value


def check_type(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of the type that its field says."""
    if not fits(value, hint):
        raise BadInput(f"{name} {value!r}: expected {in_words(hint)}", field=name)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of its field: one of several words, a finite number, text, True or False,
    or several of these."""
    if get_origin(hint) is Annotated:
        return fits(value, get_args(hint)[0])
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        return isinstance(value, list | tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be, as a note on its type: `Annotated[int, Range(least=1)]`."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and self.least <= value <= self.most and value > self.above

    def __str__(self) -> str:
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most))
        return " and ".join(f"{words} {bound:g}" for words, bound in bounds if math.isfinite(bound))


@dataclass(frozen=True)
class Search:
    """Where `unskew tune` looks for a setting, as a note on its type beside its range: at the numbers from
    `low` to `high`, on a logarithmic scale if `log`; or among a few values, `Search.among(64, 128, 256)`."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    values: tuple[Any, ...] = ()

    @classmethod
    def among(cls, *values: Any) -> "Search":
        """One of these values."""
        return cls(values=values)

    def __contains__(self, value: Any) -> bool:
        if self.values or not isinstance(value, int | float):
            return value in self.values
        return self.low <= value <= self.high

    def containing(self, value: Any) -> "Search":
        """The same with room for one more value, such as the default of a model."""
        if value in self:
            return self
        if not self.values:
            return replace(self, low=min(self.low, value), high=max(self.high, value))
        values = (*self.values, value)
        ordered = all(isinstance(each, int | float) for each in values)
        return replace(self, values=tuple(sorted(values)) if ordered else values)

    def __str__(self) -> str:
        if self.values:
            return ", ".join(map(str, self.values))
        return f"{self.low:g} to {self.high:g}{' (logarithmic)' if self.log else ''}"


# The ranges that most settings have. Where they are searched, it is as the DEPS paper does for all models.
AtLeast0 = Annotated[int, Range(least=0)]
AtLeast1 = Annotated[int, Range(least=1)]
Softmax = Literal["auto", "full", "sampled"]  # whether all ids are scored (`unskew.nn.vocabulary`)
Device = Literal["auto", "cpu", "cuda", "mps"]  # where networks compute
NotNegative = Annotated[float, Range(least=0)]
Positive = Annotated[float, Range(above=0)]
Share = Annotated[float, Range(least=0, most=1)]
Probability = Annotated[float, Range(above=0, most=1)]  # one that is divided by
Dropped = Annotated[float, Range(least=0, most=0.99), Search.among(0.1, 0.2, 0.3, 0.4, 0.5)]  # a fraction
Width = Annotated[AtLeast1, Search.among(64, 128, 256)]  # of embeddings and states
Layers = Annotated[AtLeast1, Search.among(2, 3, 4)]  # of a transformer
Clip = Annotated[Probability, Search(0.01, 0.2, log=True)]  # the lower bound of propensities
Alpha = Annotated[Share, Search(0.4, 0.6)]  # the weight of the item view


def check(settings: Any) -> None:
    """Refuse settings outside the ranges that their fields say, settings within settings included."""
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            check(value)
        elif isinstance(value, int | float):
            for allowed in _ranges(hints[field.name]):
                if value not in allowed:
                    raise BadInput(f"{field.name} {value}: expected {allowed}", field=field.name)
    width, heads = getattr(settings, "width", 0), getattr(settings, "heads", 1)
    if width % heads:
        raise BadInput(f"heads {heads}: expected a divisor of width, {width}", field="heads")


def _ranges(hint: Any) -> Iterator[Range]:
    return (note for note in _notes(hint) if isinstance(note, Range))


def _notes(hint: Any) -> Iterator[Any]:
    """The notes on a field's type, also where the field may be None."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _notes(part)


def searched(settings: Any) -> dict[str, Search]:
    """Where each setting is searched that has a note about it, settings within settings included. Of several
    notes on one type the last counts."""
    return {
        name: note
        for part in parts_of(settings)
        for name, hint in get_type_hints(part, include_extras=True).items()
        for note in _notes(hint)
        if isinstance(note, Search)
    }


def parts_of(settings: Any) -> Iterator[Any]:
    """These settings and those within them."""
    yield settings
    for hint in get_type_hints(settings).values():
        if is_dataclass(hint):
            yield from parts_of(hint)


def flat(settings: Any) -> dict[str, Any]:
    """The values of all settings by their names, those within settings included."""
    values: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        values |= flat(value) if is_dataclass(value) else {field.name: value}
    return values


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A question to append to a complaint about a word that is nearly one of these; nothing if it is not."""
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


# What settings are called elsewhere, and here.
ALIASES = {
    **dict.fromkeys(("n_epochs", "num_epochs", "max_epochs"), "epochs"),
    "lr": "learning_rate",
    **dict.fromkeys(("embedding_dim", "embedding_size", "emb_dim", "dim", "hidden_size"), "width"),
    **dict.fromkeys(("batch", "bs", "train_batch_size"), "batch_size"),
    **dict.fromkeys(("max_len", "maxlen", "max_length", "max_seq_length"), "history"),
    **dict.fromkeys(("weight_decay_rate", "l2"), "weight_decay"),
}


def meant(word: str, names: Iterable[str]) -> str:
    """What to append to a complaint about an unknown setting: its name here, or one that is near."""
    names = list(names)
    if ALIASES.get(word) in names:
        return f"; here it is {ALIASES[word]!r}"
    return did_you_mean(word, names)


def names_of(settings: Any) -> list[str]:
    """The names of all settings, those within settings included: as often as they are there."""
    hints = get_type_hints(settings)
    return [
        name
        for f in fields(settings)
        for name in (names_of(hints[f.name]) if is_dataclass(hints[f.name]) else [f.name])
    ]


class WrongFields(BadInput):
    """A document does not have the fields of what is to be read from it."""


def parse_json(text: str) -> Any:
    """A JSON document. Like a wrong one, a document that is nested too deeply is a `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None


def from_document(kind: type[C], document: Any) -> C:
    """An instance of a dataclass from what `asdict` made of it, dataclasses within it included. An unknown or
    missing field is bad input."""
    if not isinstance(document, dict):
        raise WrongFields(f"{kind.__name__}: expected its fields by name, found {document!r}")
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = [name for name in document if name not in names]
    missing = [name for name in names if name not in document]
    if unknown or missing:
        wrong = f"unknown field {unknown[0]!r}" if unknown else f"missing field {missing[0]!r}"
        raise WrongFields(f"{kind.__name__}: {wrong}")
    return kind(**{name: _from_plain(hints[name], value) for name, value in document.items()})


def _from_plain(hint: Any, value: Any) -> Any:
    """A value of a field from its plain form: a dictionary for a dataclass, a list for a tuple."""
    is_optional = NoneType in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        hint = next(
            (part for part in get_args(hint) if is_dataclass(part) or get_origin(part) is tuple), hint
        )
    is_plain = not (value is None and is_optional)
    if isinstance(hint, type) and is_dataclass(hint) and is_plain and not isinstance(value, hint):
        return from_document(cast(type[Any], hint), value)
    return tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value


def in_words(hint: Any) -> str:
    """What a type is called in an error message."""
    if get_origin(hint) is Annotated:
        return in_words(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(in_words(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        kinds = dict.fromkeys(in_words(part) for part in get_args(hint))
        return f"{len(get_args(hint))} values, each {' or '.join(kinds)}"
    return {
        float: "a finite number",
        int: "a whole number",
        str: "text",
        bool: "True or False",
        NoneType: "None",
    }.get(hint, str(hint))


def explained(settings: Any) -> dict[str, str]:
    """The help of each field: the string below it, which Python itself forgets."""
    helps: dict[str, str] = {}
    for kind in reversed([cls for cls in inspect.getmro(settings) if is_dataclass(cls)]):
        helps |= _explained_in(kind)
    return helps


@functools.cache
def _explained_in(kind: type) -> dict[str, str]:
    """The help of each field that a class defines itself; read once, since parsing a source takes long."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # a class that was made by a function has no source of its own
        return {}
    body = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(str(words.value.value).split())
        for field, words in pairwise(body.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
    }


def _with_parameters(docstring: str, helps: dict[str, str]) -> str:
    """A docstring in numpy style with these parameters behind its own."""
    listed = "\n".join(f"{name}\n    {words}" for name, words in helps.items())
    own = re.search(r"Parameters\n-+\n.*?(?=\n\n\w[^\n]*\n-{3}|\Z)", docstring, re.DOTALL)
    if own is None:
        return f"{docstring}\n\nParameters\n----------\n{listed}"
    return f"{docstring[: own.end()]}\n{listed}{docstring[own.end() :]}"


def register(registry: dict[str, type[R]], name: str, kind: type[R], what: str) -> None:
    """Enter a class by its name. The same class may be defined again, as by a module that is loaded again;
    two classes of one name are refused.

    what: what the class is, for the error, such as `a model`.
    """
    other = registry.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        where = f"{other.__module__}.{other.__qualname__}"
        raise BadInput(f"{what} named {name!r} is registered already: {where}; choose another name")
    registry[name] = kind
