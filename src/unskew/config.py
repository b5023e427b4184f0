"""Settings are frozen dataclasses, written once: they are the keywords of the Python functions and the flags
of the command line."""

import ast
import difflib
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from unskew.errors import BadInput

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")


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
        signature = inspect.Signature(
            [*given, *fields], return_annotation=inspect.signature(function).return_annotation
        )

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> R:
            arguments = signature.bind(*args, **keywords).arguments
            leading = [arguments.pop(parameter.name) for parameter in given]
            for name, value in arguments.items():
                if not fits(value, hints[name]):
                    raise BadInput(f"{name} {value!r}: expected {in_words(hints[name])}")
            return function(*leading, self.settings(**arguments))  # type: ignore[call-arg]

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = f"{function.__doc__ or ''}\n\n{_explained(self.settings)}"
        return call


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what its field says: one of some words, a finite number, text, a yes or no, or
    several of these."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(get_args(hint))
            and all(map(fits, value, get_args(hint)))
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


@dataclass(frozen=True)
class Range:
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and self.least <= value <= self.most and value > self.above

    def __str__(self) -> str:
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most))
        return " and ".join(f"{words} {bound:g}" for words, bound in bounds if math.isfinite(bound))


SOME, ANY_NUMBER, POSITIVE, SHARE = Range(least=1), Range(least=0), Range(above=0), Range(least=0, most=1)

# What a setting of a model or of its training may be, by its name: one place for all models, those to come
# included. `_width` is every name whose last word is that; a name of its own goes before. What means
# something else in some model (a clip, a decay) is checked there.
RANGES = {
    **dict.fromkeys(
        (
            "_width",
            "_layers",
            "_heads",
            "inner",
            "hidden",
            "history",
            "past_items",
            "neighbours",
            "copies",
            "samples",
        ),
        SOME,
    ),
    **dict.fromkeys(("rounds", "batch_size", "sequences"), SOME),
    **dict.fromkeys(
        ("_rounds", "_epochs", "patience", "negatives", "valid_rows", "seed", "audience", "past_users"),
        ANY_NUMBER,
    ),
    **dict.fromkeys(("weight_decay", "mlm_weight", "shrink"), ANY_NUMBER),
    **dict.fromkeys(("learning_rate", "gradient_norm"), POSITIVE),
    **dict.fromkeys(("alpha", "masked", "hidden_ids", "newest_only"), SHARE),
    "_dropout": Range(least=0, most=0.99),
}


def check(settings: Any) -> None:
    """Settings of a model or of its training within their ranges, settings within settings included."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        allowed = RANGES.get(field.name, RANGES.get(f"_{field.name.rpartition('_')[2]}"))
        if is_dataclass(value):
            check(value)
        elif allowed is not None and isinstance(value, int | float) and value not in allowed:
            raise BadInput(f"{field.name} {value}: expected {allowed}")
    width, heads = getattr(settings, "width", 0), getattr(settings, "heads", 1)
    if width % heads:
        raise BadInput(f"heads {heads}: expected a divisor of width, {width}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to append to a complaint about a word that is nearly one of these; nothing if it is not."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def names_of(settings: Any) -> list[str]:
    """The names of all settings, those within settings included: as often as they are there."""
    hints = get_type_hints(settings)
    return [
        name
        for f in fields(settings)
        for name in (names_of(hints[f.name]) if is_dataclass(hints[f.name]) else [f.name])
    ]


def rebuilt(settings: type[C], document: dict[str, Any]) -> C:
    """Settings from what `asdict` made of them, settings within settings included."""
    hints = get_type_hints(settings)
    return settings(
        **{
            name: rebuilt(hints[name], value) if is_dataclass(hints.get(name)) else value
            for name, value in document.items()
        }
    )


def in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(in_words(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return " and ".join(in_words(part) for part in get_args(hint))
    return {
        float: "a finite number",
        int: "a whole number",
        str: "text",
        bool: "True or False",
        NoneType: "None",
    }.get(hint, str(hint))


def _explained(settings: Any) -> str:
    """The fields with the words below them, which Python itself forgets."""
    explained = []
    for kind in reversed([cls for cls in inspect.getmro(settings) if is_dataclass(cls)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, words in pairwise(body.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(words, ast.Expr)
                and isinstance(words.value, ast.Constant)
            ):
                explained.append(f"{ast.unparse(field.target)}: {' '.join(str(words.value.value).split())}")
    return "\n".join(explained)
