"""The verbs of a store: look at it, export its log, and compact it."""

import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import OmitSubcommandPrefixes, Positional

from unskew.cli.shared import EventTypes, Segments, Verb, moment_of, notify, pairs, span_of, words_in
from unskew.core.config import AtLeast1
from unskew.core.errors import BadInput
from unskew.serve.store.events import in_iso
from unskew.serve.store.export import export_items, export_log
from unskew.serve.store.store import open_store


@dataclass(frozen=True, kw_only=True)
class _OnStore(Verb):
    """What all verbs of a store have."""

    store: Positional[Annotated[str, tyro.conf.arg(metavar="STORE")]]
    """The file of a store, or the URL of one in PostgreSQL."""
    segments: Segments = None


@dataclass(frozen=True, kw_only=True)
class StoreInfo(_OnStore):
    """Print what a store holds: events, users, items, recommendations, times, and its size on disk. It may be
    in use meanwhile."""

    def run(self) -> None:
        with open_store(self.store, "read", segments=self.segments) as store:
            info = store.info()
        lists = {name: ", ".join(value) for name, value in info.items() if isinstance(value, list)}
        facts = {name: "–" if value is None else value for name, value in (info | lists).items()}
        self.show(info, pairs(facts.pop("store"), facts))


@dataclass(frozen=True, kw_only=True)
class StoreExport(_OnStore):
    """Write the log of a store as a Parquet file that `unskew prepare` reads, with what was shown and not
    clicked, and with the logged propensities. The store may be in use meanwhile."""

    out: Annotated[Path, tyro.conf.arg(metavar="OUT")]
    """A folder for log.parquet, or a file that is not there yet: Parquet, or CSV or JSON lines if its name
    ends with .csv or .jsonl."""
    positive: EventTypes = None
    """The types of events that are positive, between commas; by default the setting of the store."""
    shown: EventTypes = None
    """The types of events that report a shown item; by default the setting of the store."""

    def run(self) -> None:
        with open_store(self.store, "read", segments=self.segments) as store:
            types = store.resolve_types(words_in(self.positive), words_in(self.shown))
            exported = export_log(store, self.out, types)
            items = export_items(store, exported.file)
        facts = {key: value for key, value in asdict(exported).items() if key != "file"}
        self.show(facts | {"file": str(exported.file)}, pairs(f"{store.name} -> {exported.file}", facts))
        if items is not None:
            notify(f"The item feed: {items} (unskew prepare --items {items} --items-time known_since)")
        unknown = exported.rows - exported.logged
        if 0 < unknown < exported.rows:
            notify(
                f"{unknown:,} rows have no logged propensity and count with 1; the test `logged` leaves them "
                "out."
            )
        if exported.unmatched:
            notify(
                f"{exported.unmatched:,} positives name a recommendation that was made to another user, or "
                "without their item; they are taken as not shown."
            )


@dataclass(frozen=True, kw_only=True)
class StoreCompact(_OnStore):
    """Move old events and recommendations into Parquet files beside the store, so that its database stays
    small. No other process may write meanwhile, unless the store is in PostgreSQL."""

    before: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    """Move what happened before this time, such as 2026-01-31 or 2026-01-31T12:00:00Z; a number is seconds
    since 1970."""
    older_than: Annotated[str | None, tyro.conf.arg(metavar="SPAN")] = None
    """Move what is older than this now, such as 90d or 4w."""

    def run(self) -> None:
        if (self.before is None) == (self.older_than is None):
            raise BadInput("expected one of --before TIME and --older-than SPAN")
        if self.older_than is not None:
            before = max(0, time.time_ns() // 1000 - span_of("older-than", self.older_than))
        else:
            before = moment_of("before", self.before)
        with open_store(self.store, "write", segments=self.segments) as store:
            moved = store.compact(before)._asdict()
        document = {"store": store.name, "before": in_iso(before), **moved}
        self.show(document, pairs(f"{store.name}: moved what is before {in_iso(before)}", moved))


@dataclass(frozen=True, kw_only=True)
class StoreFollow(_OnStore):
    """Read the events of a stream of Redis or Valkey into a store, until Ctrl-C. An event is acknowledged
    when it is on the disk, so each is read at least once and, by its event_id, stored once. A service over
    the same store in PostgreSQL uses it at once; a store in a file has one writer."""

    source: Positional[Annotated[str, tyro.conf.arg(metavar="URL")]]
    """Where the stream is, such as redis://127.0.0.1:6379/0."""
    stream: Annotated[str, tyro.conf.arg(metavar="NAME")] = "events"
    """The name of the stream. Entries that are no events go to NAME.rejected, with the reason."""
    group: str = "unskew"
    """The group of consumers that shares the stream. Each store has a group of its own."""
    consumer: str | None = None
    """The name of this process in the group; by default that of the machine. Give processes on one machine
    different names."""
    batch_size: AtLeast1 = 1000
    """The largest number of events that are committed together."""
    until_empty: bool = False
    """End when there is nothing new."""

    def run(self) -> None:
        from unskew.serve.store.follow import Followed, RedisStream, follow

        followed = Followed()
        with open_store(self.store, "create", segments=self.segments) as store:
            name = self.consumer or socket.gethostname()
            stream = RedisStream(self.source, self.stream, self.group, name, self.batch_size)
            with suppress(KeyboardInterrupt):
                follow(stream, store, followed, until=lambda is_empty: self.until_empty and is_empty)
        document = {"store": store.name, "stream": self.stream, **asdict(followed)}
        self.show(document, pairs(f"{self.stream} -> {store.name}", asdict(followed)))
        if followed.rejected:
            notify(f"{followed.rejected:,} entries are no events; see the stream {self.stream}.rejected")


@dataclass(frozen=True, kw_only=True)
class Store:
    """Look at a store of events (info), take its log out (export), make it small (compact), or read a stream
    into it (follow); `unskew erase` erases users from it."""

    verb: OmitSubcommandPrefixes[
        Annotated[StoreInfo, tyro.conf.subcommand("info")]
        | Annotated[StoreExport, tyro.conf.subcommand("export")]
        | Annotated[StoreCompact, tyro.conf.subcommand("compact")]
        | Annotated[StoreFollow, tyro.conf.subcommand("follow")]
    ]

    def run(self) -> None:
        """Run the verb that was asked for."""
        self.verb.run()
