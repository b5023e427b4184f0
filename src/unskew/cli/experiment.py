"""The verbs of A/B tests: what a store says about the variants of a service, and what a run would have done
that was never served."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import RenderableType
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional

from unskew.cli.shared import RunVerb, Segments, Verb, notify, table
from unskew.core.formatting import plain
from unskew.serve.store.store import open_store
from unskew.serve.variants import Estimating
from unskew.serve.variants.results import (
    Contrast,
    Interval,
    TestResults,
    TestSettings,
    VariantResult,
    read_results,
)

FEW = 100  # an effective sample size below which a warning is printed
StoreFlag = Annotated[str, tyro.conf.arg(metavar="STORE")]

HEAD: tuple[str, ...] = ("variant", "users", "lists", "converted", "conversion")
HEAD += ("positives per user", "ms (50 %, 95 %)", "items", "top 10", "fallback")


@dataclass(frozen=True, kw_only=True)
class ExperimentResults(Verb):
    """Print the conversion of each variant of an A/B test, the differences to the control with intervals that
    hold however often they are looked at, and warnings of the guard rails. The store may be in use
    meanwhile."""

    store: StoreFlag
    """The file of the store that the service writes into, or the URL of one in PostgreSQL."""
    segments: Segments = None
    settings: OmitArgPrefixes[TestSettings] = field(default_factory=TestSettings)

    def run(self) -> None:
        with open_store(self.store, "read", segments=self.segments) as store:
            results = read_results(store, self.settings)
        self.show(dict(plain(results.document())), *result_tables(results))
        for warning in results.warnings:
            notify(f"unskew: {warning}")
        if results.mixed_users:
            notify(f"{results.mixed_users:,} users had lists of several variants and are left out.")


@dataclass(frozen=True, kw_only=True)
class ExperimentEstimate(RunVerb):
    """Estimate how many items of a list would be answered if RUN had made the lists that a store recorded,
    from their logged propensities (SNIPS and doubly robust). It needs lists that were made with --explore."""

    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """A finished run, which need not have been served."""
    store: StoreFlag
    """The file of a store, or the URL of one in PostgreSQL."""
    segments: Segments = None
    settings: OmitArgPrefixes[Estimating] = field(default_factory=Estimating)

    def run(self) -> None:
        from unskew.api.create import load
        from unskew.serve.variants.off_policy import estimate_off_policy

        model = load(self.folder)
        with open_store(self.store, "read", segments=self.segments) as store:
            found = estimate_off_policy(store, model, self.settings)
        estimates = {"as recorded": found.logged, "SNIPS": found.snips, "doubly robust": found.doubly_robust}
        rows = [
            (name, f"{each.value:.4f}", f"{each.error:.4f}", f"{each.effective_size:,.0f}")
            for name, each in estimates.items()
        ]
        title = f"{found.model}: answered items per list, from {found.lists:,} of {found.whole:,} lists"
        head = ("", "per list", "standard error", "effective sample")
        self.show(dict(plain(found.document())), table(title, head, rows))
        if found.snips.effective_size < FEW:
            notify(
                f"unskew: the effective sample size is {found.snips.effective_size:,.0f}: few recorded items "
                "are in the lists of this run, so the estimates say little; serve with more exploration"
            )


def result_tables(results: TestResults) -> list[RenderableType]:
    """The results for the terminal."""
    span = f"{(results.since or '')[:10]} to {(results.until or '')[:10]}"
    rows = [_variant_row(variant) for variant in results.variants]
    contrasts = [_contrast_row(contrast, results.control) for contrast in results.contrasts]
    head = ("difference", "conversion", "always-valid 95 % interval", "p", "positives per user", "")
    return [
        table(f"{results.store}, lists of {span}", HEAD, rows),
        table("Intervals and p hold at any time; p < 0.05 may stop the test.", head, contrasts),
    ]


def _variant_row(variant: VariantResult) -> tuple[str, ...]:
    latency = " / ".join(f"{value:.1f}" for value in variant.latency_ms or ()) or "–"
    counts = (f"{value:,}" for value in (variant.users, variant.lists, variant.converted))
    rates = _spread(variant.conversion), _spread(variant.positives_per_user)
    rest = f"{variant.coverage:,.0f}", f"{variant.top_items:.1%}", f"{variant.fallback:.1%}"
    return (variant.name, *counts, *rates, latency, *rest)


def _contrast_row(contrast: Contrast, control: str) -> tuple[str, ...]:
    interval = f"[{contrast.low:+.4f}, {contrast.high:+.4f}]"
    verdict = "different" if contrast.is_decided else "not decided"
    per_user = _spread(contrast.positives_per_user, "+")
    name = f"{contrast.variant} − {control}"
    return name, f"{contrast.difference:+.4f}", interval, f"{contrast.p:.3g}", per_user, verdict


def _spread(interval: Interval, sign: str = "") -> str:
    value, low, high = (f"{value:{sign}.4f}" for value in interval)
    return f"{value} [{low}, {high}]"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Read the results of an A/B test (results), or estimate from recorded lists how a run would have
    converted that was never served (estimate)."""

    verb: OmitSubcommandPrefixes[
        Annotated[ExperimentResults, tyro.conf.subcommand("results")]
        | Annotated[ExperimentEstimate, tyro.conf.subcommand("estimate")]
    ]

    def run(self) -> None:
        """Run the verb that was asked for."""
        self.verb.run()
