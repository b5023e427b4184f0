"""Figures in words: how counts, shares and numbers are written for people, and for JSON."""

import math
from typing import Any


def count(number: int) -> str:
    return f"{number:,}"


def share(share: float, digits: int = 1) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def number(number: float) -> str:
    """Three digits that matter, whole numbers whole."""
    if math.isnan(number):
        return "–"
    if abs(number) >= 100 or number == round(number):
        return f"{number:,.0f}"
    return f"{number:.{2 if abs(number) < 10 else 1}f}"


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
