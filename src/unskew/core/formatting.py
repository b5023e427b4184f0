"""How counts, fractions and other numbers are written for people, and for JSON."""

import math
from typing import Any


def count(number: int) -> str:
    """A whole number with commas: 12,345."""
    return f"{number:,}"


def fraction(fraction: float, digits: int = 1) -> str:
    """A fraction in per cent: 12.3 %. A dash stands for nan."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.{digits}f} %"


def number(number: float) -> str:
    """A number with about three significant digits, and whole numbers without decimals. A dash stands for
    nan."""
    if math.isnan(number):
        return "–"
    if abs(number) >= 100 or number == round(number):
        return f"{number:,.0f}"
    return f"{number:.{2 if abs(number) < 10 else 1}f}"


def significant(number: float) -> str:
    """A number with three significant digits, which may be tiny. A dash stands for nan."""
    return "–" if math.isnan(number) else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def decimals(number: float) -> str:
    """A number with two decimals, and never -0.00. A dash stands for nan."""
    return "–" if math.isnan(number) else f"{round(number, 2) + 0.0:.2f}"


def plain(value: Any) -> Any:
    """The same value for JSON: tuples become lists, and numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
