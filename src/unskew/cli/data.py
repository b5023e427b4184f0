"""The verbs of data: prepare, inspect, audit, and simulate."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from unskew.cli.shared import (
    Data,
    File,
    Out,
    RunVerb,
    Verb,
    command_line,
    flat,
    inspection_tables,
    notify,
    pairs,
    split_of,
    split_of_run,
    table,
    write_file,
)
from unskew.core.atomic_files import FRAMES, check_free, save_frames
from unskew.core.errors import BadInput, Leak
from unskew.data.audit.audit import audit
from unskew.data.log.preparation import Preparation
from unskew.data.log.split import Splitting
from unskew.data.log.views import AUDIENCE, HISTORY
from unskew.data.reading.features import in_sentences
from unskew.data.reading.prepare import prepare
from unskew.diagnostics.log.inspect import inspect
from unskew.world.equations import Simulation
from unskew.world.shop import SHOP, simulate_shop
from unskew.world.simulate import simulate


@dataclass(frozen=True, kw_only=True)
class Prepare(Verb):
    """Read a log, check every row, remove duplicates, and write it into a folder that all other commands
    read."""

    source: Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE", help="A file, a folder or a pattern.")]]
    out: Out
    settings: OmitArgPrefixes[Preparation] = field(default_factory=Preparation)

    def run(self) -> None:
        log = prepare(self.source, self.out, **asdict(self.settings))
        metadata = asdict(log.metadata)
        names = ("source", "rows", "positives", "users", "items", "columns", "time_unit", "removed")
        facts = {name: metadata[name] for name in names}
        optional: dict[str, Any] = {
            name: metadata[name] for name in ("features", "types") if name in log.metadata.as_dict()
        }
        readable = facts | {"removed": {name: n for name, n in facts["removed"].items() if n} or 0}
        if "types" in optional:
            readable |= {name: _words(value) for name, value in optional["types"].items() if value}
        self.show(
            {"data": str(self.out), **facts, **optional},
            pairs(f"{self.source} -> {self.out}", flat(readable)),
        )
        if log.metadata.untyped is not None:
            notify(
                f"The column {log.metadata.untyped!r} looks like types of events and was not read, so all of "
                "its events are positives. To say which types are predicted and which are only read, use "
                f"--type {log.metadata.untyped} --target ... --context ..."
            )
        for sentence in in_sentences(log.metadata.features):
            notify(sentence)
        held = [
            f"{name} {'numbers' if feature.is_number else f'categories ({len(feature.names):,})'}"
            for vocabulary in (log.users, log.items)
            for name, feature in vocabulary.features.items()
        ]
        if held:
            notify(f"What the features hold: {', '.join(held)}.")
        negatives = len(log) - log.positives
        if negatives and "label" in log.metadata.columns:
            notify(
                f"{negatives:,} rows have label 0: they count as shown and not clicked, and models that "
                "compare pairs learn from them as negatives. If they are something else, such as views in a "
                "shop, declare the types of events with --type, --target and --context."
            )
        if bad := log.metadata.removed.bad_rows:
            notify(f"{bad} bad rows were set aside: {self.out / 'bad_rows.csv'}")


def _words(value: tuple[str, ...] | dict[str, int]) -> str | dict[str, int]:
    """Names as one text; numbers by names as they are."""
    return value if isinstance(value, dict) else ", ".join(value)


@dataclass(frozen=True, kw_only=True)
class Inspect(Verb):
    """Say how biased a log is and what to do about it, and show its figures: size, popularity, drift, tests,
    order of events, repeats and ties."""

    data: Positional[Data]
    html: File = None
    """Also write the bias page, one self-contained HTML file with plots (needs the extra `report`)."""
    suggest_drop: File = None
    """Also write the ids of probable bots and test accounts, one in a line, for `prepare --drop-users`."""
    seed: int = 0
    """Seed of the shuffles that test whether the order of events matters."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)

    def run(self) -> None:
        found = inspect(split_of(self.data, self.splitting), self.seed)
        if self.html is not None:
            from unskew.diagnostics.log.page import inspect_page

            write_file(self.html, inspect_page(found, command_line()), "the page")
        if self.suggest_drop is not None:
            ids = "".join(f"{robot.user}\n" for robot in found.robots.users)
            write_file(self.suggest_drop, ids, "the list of users")
        self.show(found.as_dict(), *inspection_tables(found))


@dataclass(frozen=True, kw_only=True)
class Audit(RunVerb):
    """Prove that nothing a model may read comes from the future. If something does, name the first such row
    and exit with 1."""

    data: Positional[Data]
    trained: Annotated[Path | None, tyro.conf.arg(name="run", metavar="RUN")] = None
    """Also check the model of this run, on the split that it was trained on: at several times t, its scores
    from the log cut at t must equal those from the whole log."""
    history: int = HISTORY
    """How many past items of a user a model reads."""
    audience: int = AUDIENCE
    """How many past users of an item a model reads."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)

    def run(self) -> None:
        if self.trained is not None and self.splitting != Splitting():
            raise BadInput("--run audits the split of the run: leave the flags of splits away")
        split = (
            split_of(self.data, self.splitting)
            if self.trained is None
            else split_of_run(self.trained, self.data)
        )
        findings = audit(split, self.history, self.audience)
        if self.trained is not None:
            from unskew.api.create import load
            from unskew.evaluation.score_audit import audit_scores

            findings.append(audit_scores(load(self.trained).network, split))
        leaks = [finding for finding in findings if not finding.passed]
        rows = []
        for finding in findings:
            note = f" ({finding.note})" if finding.note else ""
            rows.append((finding.check, f"{finding.checked:,}", finding.offence or f"no leak{note}"))
        checks = [asdict(finding) | {"passed": finding.passed} for finding in findings]
        document = {"leak_free": not leaks, "checks": checks}
        self.show(document, table(f"Leak audit of {self.data}", ("check", "checked", "finding"), rows))
        if leaks:
            raise Leak(f"{leaks[0].check}: {leaks[0].offence}")


@dataclass(frozen=True, kw_only=True)
class Simulate(Verb):
    """Simulate a log of a world whose true preferences and exposure probabilities are known, or the events of
    a shop (`--kind shop`): views, carts and purchases in a CSV or Parquet file, and beside it what is true of
    the shop. Of the settings of a world, a shop has users, items, steps (days) and seed."""

    out: Out
    kind: str | None = None
    """The kind of world; see `simulate_of`."""
    settings: OmitArgPrefixes[Simulation] = field(default_factory=Simulation)

    def run(self) -> None:
        if self.kind == SHOP:
            return self._shop()
        log = prepare(simulate(**asdict(self.settings)).log, self.out, duplicates="keep")
        facts = {name: getattr(log.metadata, name) for name in ("rows", "positives", "users", "items")}
        self.show(
            {"data": str(self.out), **facts, "world": asdict(self.settings)},
            pairs(f"simulated world -> {self.out}", facts),
        )
        return None

    def _shop(self) -> None:
        """Write the events of a shop, and the ground truth beside them."""
        given = self.settings
        of_shop = {"users": given.users, "items": given.items, "seed": given.seed}
        if given != replace(Simulation(), **of_shop, steps=given.steps):
            raise BadInput("a simulated shop has the settings users, items, steps and seed alone")
        if self.out.suffix not in FRAMES:
            raise BadInput(f"{self.out}: expected a name that ends with {', '.join(FRAMES)}", field="out")
        truth = self.out.with_name(f"{self.out.stem}.truth.json")
        for file in (self.out, truth):
            check_free(file)
        shop = simulate_shop(**of_shop, days=given.steps)
        save_frames(iter([shop.events]), self.out)
        truth.write_text(json.dumps(shop.truth(), indent=1) + "\n", encoding="utf-8")
        counts = shop.events["event_type"].value_counts().to_pylist()
        types = {each["values"]: each["counts"] for each in counts}
        document = {"events": str(self.out), "truth": str(truth), "rows": len(shop.events), "types": types}
        self.show(document, pairs(f"simulated shop -> {self.out}", flat(document)))
