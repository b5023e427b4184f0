"""How skewed a log and the shown lists are: what the tool `inspect_bias` answers."""

from collections.abc import Sequence
from math import ceil, isfinite
from typing import Any, cast

from unskew.data.log.views import Ints
from unskew.diagnostics.log.statistics import gini
from unskew.serve.http.schemas import BiasAnswer, ModelAnswer, ShownWindow

SHOWN_WINDOWS = 8  # the newest windows that an answer has


def bias_answer(counts: Ints, windows: Sequence[dict[str, Any]], about: ModelAnswer) -> BiasAnswer:
    """The answer, from the positives of each item in falling order, the windows of the monitor (the newest
    first), and what is known of the model."""
    positives, items = int(counts.sum()), len(counts)
    index = gini(counts) if items else float("nan")
    tenth = float(counts[: ceil(items / 10)].sum() / positives) if positives else None
    newest = [
        cast(ShownWindow, {name: window[name] for name in ShownWindow.__annotations__}) for window in windows
    ]
    return BiasAnswer(
        summary=list(_sentences(tenth, newest, about)),
        positives=positives,
        items=items,
        gini=index if isfinite(index) else None,
        top_tenth=tenth,
        windows=newest,
        debias=about["debias"],
        debias_curve=about["debias_curve"],
    )


def _sentences(tenth: float | None, windows: Sequence[ShownWindow], about: ModelAnswer) -> list[str]:
    lines = []
    if tenth is not None:
        lines.append(f"The most popular tenth of the items has {tenth:.0%} of all positives.")
    lift = next((window["lift"] for window in windows if window["lift"] is not None), None)
    if lift is None:
        lines.append("Nothing is known of what was shown lately.")
    else:
        kind = "more" if lift > 1 else "less"
        lines.append(
            f"What was shown lately is {kind} popular than what was chosen, by a factor of {lift:.2f}."
        )
    if about["debias"]["available"]:
        lines.append(f"The model has a debiasing strength; its default is {about['debias']['default']:g}.")
    else:
        lines.append("The model has no debiasing strength.")
    return lines
