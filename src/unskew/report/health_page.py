"""The report of `unskew propensity health`: how good the estimated propensities are, on one page."""

import math

from unskew.propensity.health import Balance, Health, View
from unskew.report.charts import Bars, Lines, svg
from unskew.report.page import Markup, Section, beside, figure, page, points, table


def health_page(health: Health, name: str) -> str:
    """The whole report as one HTML file; `name` is the run's."""
    sections = [
        Section("What to make of it", (points(health.sentences()),)),
        Section("In figures", (table(("", "", "", ""), _figures(health), text=(0, 1), remarks=(3,)),)),
        _weights(health),
        _balance(health),
        _deciles(health),
    ]
    if health.known:
        sections.insert(2, _calibration(health))
    return page(f"Propensities of {name}", sections, health.source)


def _figures(health: Health) -> list[tuple[str, str, str, str]]:
    """A group is named once."""
    rows = health.rows()
    named = ["" if at and rows[at - 1].group == row.group else row.group for at, row in enumerate(rows)]
    return [(group, row.name, row.value, row.meaning) for group, row in zip(named, rows, strict=True)]


def _calibration(health: Health) -> Section:
    return Section(
        "Calibration", (beside(*(_curve(view) for view in health.views if view.calibration is not None)),)
    )


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
    chart = Lines(
        estimated,
        series,
        "log10 of the estimated propensity",
        "log10 of the propensity",
        view.name,
        marked=True,
    )
    drawing = svg(
        chart,
        f"calibration-{view.name.replace(' ', '').replace('/', '-')}",
        f"True against estimated propensity, {view.name}",
    )
    rows = f"{sum(point.rows for point in found.curve):,} pairs in {len(found.curve)} bins"
    return figure(
        drawing,
        f"{rows}. Were the estimates perfect, “true” would lie on “estimate”; were they proportional, on "
        "“rescaled”.",
    )


def _weights(health: Health) -> Section:
    bars = health.weights.histogram
    chart = Bars(
        [f"{bar.low:.3g}" for bar in bars],
        {"pairs": [bar.share for bar in bars]},
        "weight, from",
        "of the pairs",
    )
    drawing = figure(svg(chart, "weights", "Histogram of the weights"), "Bins of equal width on a log scale.")
    tail = Bars(
        [str(part.number) for part in health.deciles],
        {
            "effective sample": [_drawn(part.weights.effective_share) for part in health.deciles],
            **{f"clipped, {name}": shares for name, shares in _clipped(health).items()},
        },
        "tenth of the known items, most popular first",
        "of the tenth's pairs",
    )
    by_tenth = figure(
        svg(tail, "clipped", "Effective sample size and clipped shares per tenth"),
        "Clipped pairs all weigh the same.",
    )
    return Section("Weights", (beside(drawing, by_tenth),))


def _balance(health: Health) -> Section:
    shares = {
        "observed": [part.share for part in health.deciles],
        "weighted": [part.weighted_share for part in health.deciles],
        "uniform": [part.uniform_share for part in health.deciles],
    }
    labels = [str(part.number) for part in health.deciles]
    chart = Bars(labels, shares, "tenth of the known items, most popular first", "of all pairs")
    drawing = figure(
        svg(chart, "balance", "Share of pairs per tenth of the items"),
        "Good weights make the observed pairs look uniform.",
    )
    tenths = [[part.covariate, *_both(part), *_range(health, at)] for at, part in enumerate(health.balance)]
    head = ("", "before", "after", "in tenths", "after")
    figures = table(
        head,
        tenths,
        caption="Distance from uniform pairs in standard deviations; 0 is balance, below 0.1 is good.",
    )
    return Section("Balance", (beside(drawing, figures),))


def _both(part: Balance) -> tuple[str, str]:
    return _distance(part.before), _distance(part.after)


def _range(health: Health, at: int) -> tuple[str, str]:
    """Mean distance over the tenths, whatever its sign."""
    parts = [tenth.balance[at] for tenth in health.deciles if not math.isnan(tenth.balance[at].before)]
    if not parts:
        return "–", "–"
    before, after = (
        sum(abs(getattr(part, when)) for part in parts) / len(parts) for when in ("before", "after")
    )
    return f"{before:.2f}", f"{after:.2f}"


def _deciles(health: Health) -> Section:
    head, lines = health.decile_table()
    caption = (
        "Tenths of the known items by training positives, the most popular first. Shares are of all pairs, "
        "of all weight, of"
        " uniform pairs; rank: Spearman with the truth."
    )
    return Section("By popularity", (table(head, lines, caption=caption),))


def _clipped(health: Health) -> dict[str, list[float]]:
    names = [view.name for view in health.views if not math.isnan(view.clipped)]
    return {
        name: [_drawn(view.clipped) for part in health.deciles for view in part.views if view.name == name]
        for name in names
    }


def _drawn(share: float) -> float:
    """A tenth without pairs has no bar."""
    return 0.0 if math.isnan(share) else share


def _distance(number: float) -> str:
    return "–" if math.isnan(number) else f"{round(number, 2) + 0.0:.2f}"  # no -0.00
