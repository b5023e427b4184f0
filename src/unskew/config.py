"""Settings are frozen dataclasses, written once: they are the keywords of the Python functions and the flags of the command line."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

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
        given = list(inspect.signature(function).parameters.values())[:-1]
        fields = list(inspect.signature(self.settings).parameters.values())
        signature = inspect.Signature([*given, *fields], return_annotation=inspect.signature(function).return_annotation)

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> R:
            arguments = signature.bind(*args, **keywords).arguments
            leading = [arguments.pop(parameter.name) for parameter in given]
            return function(*leading, self.settings(**arguments))  # type: ignore[call-arg]

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call
