"""The health page of `unskew propensity health`: what the weights of a run do, and what to do about it."""

import math
from itertools import groupby
from operator import attrgetter

from markupsafe import Markup

from unskew.core.formatting import decimals
from unskew.diagnostics.propensity.health import Health
from unskew.diagnostics.propensity.statistics import Calibration
from unskew.report.charts import Bars, Lines, svg
from unskew.report.page import Page
from unskew.report.table import Table
from unskew.report.templates import render

TENTHS = "tenth of the items, most popular first"


def health_page(health: Health, name: str, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    name: the name of the run.
    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    calibrations = [(view.label, view.calibration) for view in health.views]
    return render(
        "diagnostics/templates/health.html",
        page=Page(
            title=f"Do the weights of {name} help?",
            verdict=health.verdict(),
            data=health.fingerprint,
            command=command,
            date=date,
            subtitle=f"Propensities estimated for {health.source}",
        ),
        health=health,
        charts={"balance": _balance(health), "weights": _weights(health), "clipped": _clipped(health)},
        balance=_distances(health),
        # Nothing where the ground truth is unknown, or where all estimates are equal.
        calibration=[
            (calibration.curve, _calibration(label, calibration))
            for label, calibration in calibrations
            if calibration is not None and len(calibration.curve) > 1
        ],
        rows=[(group, list(rows)) for group, rows in groupby(health.rows(), attrgetter("group"))],
        by_popularity=[Table(part.head, part.rows, caption=part.meaning) for part in health.tables()],
    )


def _balance(health: Health) -> Markup:
    fractions = {
        "events": [part.fraction for part in health.deciles],
        "weighted": [part.weighted_share for part in health.deciles],
        "even sample": [part.uniform_share for part in health.deciles],
    }
    chart = Bars([str(part.number) for part in health.deciles], fractions, TENTHS, "of all events")
    return svg(chart, "balance", "Fraction of the events per tenth of the items")


def _weights(health: Health) -> Markup:
    bars = health.weights.histogram
    labels = [f"{float(f'{bar.low:.3g}'):,g}" for bar in bars]
    chart = Bars(labels, {"events": [bar.fraction for bar in bars]}, "weight, from", "of the events")
    return svg(chart, "weights", "Histogram of the weights")


def _clipped(health: Health) -> Markup:
    """The effective sample and the clipped fractions per tenth; a tenth without events has no bar."""
    fractions = {"effective sample": [part.weights.effective_share for part in health.deciles]}
    for view in health.views:
        if not math.isnan(view.clipped):
            fractions[f"clipped, {view.name}"] = [
                of_part.clipped
                for part in health.deciles
                for of_part in part.views
                if of_part.name == view.name
            ]
    drawn = {name: [0.0 if math.isnan(y) else y for y in line] for name, line in fractions.items()}
    chart = Bars([str(part.number) for part in health.deciles], drawn, TENTHS, "of the tenth's events")
    return svg(chart, "clipped", "Effective sample size and clipped fractions per tenth")


def _calibration(label: str, calibration: Calibration) -> Markup:
    estimated = [math.log10(point.estimated) for point in calibration.curve]
    series = {
        "true": [math.log10(point.true) for point in calibration.curve],
        "estimate": estimated,
        "rescaled": [math.log10(calibration.scale) + x for x in estimated],
    }
    # Exponents on plain axes: estimates often span less than a decade, where a log axis has no numbers.
    chart = Lines(estimated, series, "log10 of the estimate", "log10 of the propensity", label, marked=True)
    name = f"calibration-{label.replace(' ', '-')}"
    return svg(chart, name, f"True against estimated propensity, {label}")


def _distances(health: Health) -> Table:
    """How far the events are from an even sample, in all and within tenths by popularity."""
    rows = []
    for at, part in enumerate(health.balance):
        tenths = [tenth.balance[at] for tenth in health.deciles if not math.isnan(tenth.balance[at].before)]
        within = [
            sum(map(abs, values)) / len(tenths) if tenths else math.nan
            for values in ([tenth.before for tenth in tenths], [tenth.after for tenth in tenths])
        ]
        rows.append((part.covariate, *map(decimals, (part.before, part.after, *within))))
    return Table(
        ("", "without weights", "with weights", "within tenths, without", "with"),
        rows,
        caption="Distance of the events from an even sample, in standard deviations: 0 is balance, below "
        "0.1 is good. Within tenths: the mean over tenths of the items by popularity.",
    )
