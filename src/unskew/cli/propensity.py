"""The verbs of propensities: look at their health, or export them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import OmitSubcommandPrefixes, Positional

from unskew.cli.shared import (
    Data,
    File,
    MovedData,
    RunArg,
    RunVerb,
    command_line,
    flat,
    inspection_tables,
    pairs,
    split_of_run,
    table,
    write_file,
)
from unskew.core.config import Document
from unskew.diagnostics.propensity.health import (
    health,
    judge_exposure_taken,
    logged_ground_truth,
    weighted_rows,
)


@dataclass(frozen=True, kw_only=True)
class PropensityHealth(RunVerb):
    """Say what the propensity weights of a run do and what to do about it, and show their values: weights,
    clipping, balance and, where the true propensities are known, calibration."""

    folder: Positional[RunArg]
    data: MovedData = None
    html: File = None
    """Also write the health page, one self-contained HTML file with plots (needs the extra `report`)."""
    sample: int | None = None
    """Look at a random sample of so many training events instead of all of them; faster on a big log."""
    seed: int = 0
    """Seed of that sample, and of the even sample that the events are compared with."""

    def run(self) -> None:
        from unskew.api.create import load

        trained, cut = load(self.folder), split_of_run(self.folder, self.data)
        rows = weighted_rows(cut, self.sample, self.seed)
        estimates = trained.propensities(cut.log, rows)
        assert trained.network is not None
        exposure = judge_exposure_taken(trained.network.correction, cut)
        found = health(
            cut, estimates, trained.propensity.clip, logged_ground_truth(cut.log), self.seed, rows, exposure
        )
        if self.html is not None:
            from unskew.diagnostics.propensity.page import health_page

            write_file(self.html, health_page(found, self.folder.name, command_line()), "the page")
        by_popularity = [table(f"\n{part.title}", part.head, part.rows) for part in found.tables()]
        self.show(found.as_dict(), *inspection_tables(found), *by_popularity)


@dataclass(frozen=True, kw_only=True)
class PropensityExport(RunVerb):
    """Write both propensities, the weight and the part (train, valid, test) of every row, with your ids, for
    any other library."""

    folder: Positional[RunArg]
    data: Positional[Data]
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """The Parquet file to write; it must not be there yet."""

    def run(self) -> None:
        from unskew.api.create import load

        trained = load(self.folder)
        parts = trained.save_propensities(split_of_run(self.folder, self.data).log, self.out)
        document: Document = {"file": str(self.out), "run": str(self.folder), "model": trained.name}
        document |= {"clip": trained.propensity.clip, "rows": sum(parts.values()), "parts": parts}
        self.show(document, pairs(f"{self.folder} -> {self.out}", flat(document)))


@dataclass(frozen=True, kw_only=True)
class Propensity:
    """Look at a run's propensities (health), or take their weights elsewhere (export)."""

    verb: OmitSubcommandPrefixes[
        Annotated[PropensityHealth, tyro.conf.subcommand("health")]
        | Annotated[PropensityExport, tyro.conf.subcommand("export")]
    ]

    def run(self) -> None:
        """Run the verb that was asked for."""
        self.verb.run()
