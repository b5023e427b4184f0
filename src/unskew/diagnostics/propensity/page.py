"""The health page of `unskew propensity health`: what the weights of a run do, and what to do about it."""

import math
from itertools import groupby

from unskew.diagnostics.propensity.findings import LABELS
from unskew.diagnostics.propensity.health import Health
from unskew.diagnostics.propensity.statistics import View
from unskew.report.charts import Bars, Lines, svg
from unskew.report.page import Markup, Origin, Section, beside, cards, facts, figure, page, points
from unskew.report.page import table as placed
from unskew.report.table import Table

TENTHS = "tenth of the items, most popular first"


def health_page(health: Health, name: str, command: str = "", date: str = "") -> str:
    """The whole report as one HTML file.

    name: the name of the run.
    command: the command line that made it, for the foot of the page.
    date: when it was made; by default now.
    """
    origin = Origin(health.fingerprint, command, date)
    sections = [
        Section("What was found", (points(health.sentences(), topics=True),)),
        _balance(health),
        _weights(health),
        *_calibration(health),
        _by_popularity(health),
        _figures(health),
    ]
    title = f"Do the weights of {name} help?"
    return page(title, health.verdict(), sections, origin, f"Propensities estimated for {health.source}")


def _balance(health: Health) -> Section:
    fractions = {
        "events": [part.fraction for part in health.deciles],
        "weighted": [part.weighted_share for part in health.deciles],
        "even sample": [part.uniform_share for part in health.deciles],
    }
    chart = Bars([str(part.number) for part in health.deciles], fractions, TENTHS, "of all events")
    drawing = figure(
        svg(chart, "balance", "Share of the events per tenth of the items"),
        "Good weights bring the events near an even sample, in which every item is shown equally often.",
    )
    rows = [
        (part.covariate, _distance(part.before), _distance(part.after), *_mean_distance(health, at))
        for at, part in enumerate(health.balance)
    ]
    distances = Table(
        ("", "without weights", "with weights", "within tenths, without", "with"),
        rows,
        caption="Distance of the events from an even sample, in standard deviations: 0 is balance, below "
        "0.1 is good. Within tenths: the mean over tenths of the items by popularity.",
    )
    return Section("Balance: do the events look like an even sample?", (beside(drawing, placed(distances)),))


def _weights(health: Health) -> Section:
    bars = health.weights.histogram
    chart = Bars(
        [f"{float(f'{bar.low:.3g}'):,g}" for bar in bars],
        {"events": [bar.fraction for bar in bars]},
        "weight, from",
        "of the events",
    )
    drawing = figure(
        svg(chart, "weights", "Histogram of the weights"),
        "How many events have which weight. The bars are equally wide on a log scale."
        if len(bars) > 1
        else "All events have the same weight.",
    )
    tail = Bars(
        [str(part.number) for part in health.deciles],
        {
            "effective sample": [_drawn(part.weights.effective_share) for part in health.deciles],
            **{f"clipped, {name}": fractions for name, fractions in _clipped(health).items()},
        },
        TENTHS,
        "of the tenth's events",
    )
    by_tenth = figure(
        svg(tail, "clipped", "Effective sample size and clipped fractions per tenth"),
        "Events below the clip all weigh the same. An effective sample of 100 % means equal weights.",
    )
    return Section("Weights: how much do they differ?", (beside(drawing, by_tenth),))


def _calibration(health: Health) -> tuple[Section, ...]:
    """Nothing where the ground truth is unknown, or where no view has two different estimates to draw a line
    by."""
    drawn = [
        _curve(view)
        for view in health.views
        if view.calibration is not None and len(view.calibration.curve) > 1
    ]
    return (Section("Calibration: are the propensities true?", (beside(*drawn),)),) if drawn else ()


def _curve(view: View) -> Markup:
    found = view.calibration
    assert found is not None
    estimated, true = (
        [math.log10(getattr(point, part)) for point in found.curve] for part in ("estimated", "true")
    )
    series = {
        "true": true,
        "estimate": estimated,
        "rescaled": [math.log10(found.scale) + x for x in estimated],
    }
    # Exponents on plain axes: estimates often span less than a decade, where a log axis has no numbers to
    # show.
    label = LABELS[view.name]
    chart = Lines(estimated, series, "log10 of the estimate", "log10 of the propensity", label, marked=True)
    drawing = svg(
        chart, f"calibration-{label.replace(' ', '-')}", f"True against estimated propensity, {label}"
    )
    return figure(
        drawing,
        f"{sum(point.rows for point in found.curve):,} events in {len(found.curve)} bins. If the estimates "
        "were perfect, “true” would lie on “estimate”; if they were right but for a constant factor, "
        "on “rescaled”.",
    )


def _by_popularity(health: Health) -> Section:
    made = [placed(Table(part.head, part.rows, caption=part.meaning)) for part in health.tables()]
    return Section("By popularity: tenths of the items, most popular first", (beside(*made),))


def _figures(health: Health) -> Section:
    groups = groupby(health.rows(), key=lambda row: row.group)
    return Section(
        "All figures", (cards(*(facts(list(rows), group.capitalize()) for group, rows in groups)),)
    )


def _mean_distance(health: Health, at: int) -> tuple[str, str]:
    """The mean distance over the tenths, whatever its sign, without and with weights."""
    parts = [tenth.balance[at] for tenth in health.deciles if not math.isnan(tenth.balance[at].before)]
    if not parts:
        return "–", "–"
    before, after = (
        sum(abs(getattr(part, when)) for part in parts) / len(parts) for when in ("before", "after")
    )
    return f"{before:.2f}", f"{after:.2f}"


def _clipped(health: Health) -> dict[str, list[float]]:
    names = [view.name for view in health.views if not math.isnan(view.clipped)]
    return {
        name: [_drawn(view.clipped) for part in health.deciles for view in part.views if view.name == name]
        for name in names
    }


def _drawn(fraction: float) -> float:
    """A tenth without events has no bar."""
    return 0.0 if math.isnan(fraction) else fraction


def _distance(number: float) -> str:
    return "–" if math.isnan(number) else f"{round(number, 2) + 0.0:.2f}"  # no -0.00
