"""Settings are frozen dataclasses, written once: they are the keywords of the Python functions and the flags of the command line."""

import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import is_dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints, overload

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
        signature = inspect.Signature([*given, *fields], return_annotation=inspect.signature(function).return_annotation)

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
    """Whether a value is what its field says: one of some words, a finite number, text, a yes or no, or several of these."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and len(value) == len(get_args(hint)) and all(map(fits, value, get_args(hint)))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def rebuilt(settings: type[C], document: dict[str, Any]) -> C:
    """Settings from what `asdict` made of them, settings within settings included."""
    hints = get_type_hints(settings)
    return settings(**{name: rebuilt(hints[name], value) if is_dataclass(hints.get(name)) else value for name, value in document.items()})


def in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(in_words(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return " and ".join(in_words(part) for part in get_args(hint))
    return {float: "a finite number", int: "a whole number", str: "text", bool: "True or False", NoneType: "None"}.get(hint, str(hint))


def _explained(settings: Any) -> str:
    """The fields with the words below them, which Python itself forgets."""
    explained = []
    for kind in reversed([cls for cls in inspect.getmro(settings) if is_dataclass(cls)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, words in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant):
                explained.append(f"{ast.unparse(field.target)}: {' '.join(str(words.value.value).split())}")
    return "\n".join(explained)
