"""Events from a stream of Redis (or Valkey) into a store, at least once, and stored once.

    unskew store follow events.db redis://host:6379/0 --stream clicks

An entry of the stream is an event: its fields are those of an event (`event_id`, `user_id`, `item_id`,
`type`, `timestamp`, ...), or it has one field `event` with an event as JSON. An entry is acknowledged after
its event is committed, so what was read when a process was killed is read again, and the store knows an
`event_id` that it has. Without one, the `event_id` is made of the stream and the entry's own id, and without
a `timestamp` the time is that of the entry.

Several processes of one group share a stream. What one of them read and did not acknowledge for a minute is
taken over by another. Entries that are no events go to the stream NAME.rejected, with the reason.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from unskew.core.config import Document
from unskew.core.errors import BadInput, UnskewError
from unskew.serve.store.events import BadEvent, Event, in_iso
from unskew.serve.store.store import Store

if TYPE_CHECKING:
    pass

BLOCK_MS = 500  # for which a read waits for new entries
TAKEN_OVER_MS = 60_000  # after which what another process read is taken over
REASON = "rejected_because"
NUMBERS = ("timestamp", "position", "propensity", "impression")  # fields that are no text in JSON
SCHEMES = ("redis", "rediss", "unix")

Entry = tuple[str, Mapping[str, str]]  # the id of an entry, and its fields


@dataclass
class Followed:
    """What was read.

    Attributes
    ----------
    accepted, duplicates
        How many events were stored, and how many the store had already.
    rejected
        How many entries were no events.
    """

    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0


class Stream(Protocol):
    """A stream that is read by a group."""

    name: str

    def entries(self) -> Iterator[list[Entry]]:
        """Batches of entries, first those that were read before and not acknowledged. An empty one comes
        when there is nothing new."""

    def acknowledge(self, ids: list[str]) -> None:
        """Say that these entries need not be read again."""

    def reject(self, entry: Entry, reason: str) -> None:
        """Keep an entry that is no event, with the reason."""


class RedisStream(Stream):
    """A stream of Redis."""

    def __init__(self, url: str, name: str, group: str, consumer: str, batch: int) -> None:
        where = re.sub(r"//[^/]*@", "//", url)  # without user and password
        if url.partition("://")[0] not in SCHEMES:
            raise BadInput(f"{where}: expected the URL of a Redis or Valkey server, redis://HOST:PORT/NUMBER")
        try:
            import redis
        except ImportError:
            raise BadInput(
                "a stream of Redis needs the extra: pip install '.[stream]' in a clone of unskew"
            ) from None
        self.name, self.group, self.consumer, self.batch = name, group, consumer, batch
        self._redis, self._where = redis, where
        try:
            self.client: redis.Redis = redis.Redis.from_url(url, decode_responses=True, socket_timeout=30)
        except ValueError as error:
            raise BadInput(f"{self._where}: {error}") from None
        try:
            self.client.xgroup_create(name, group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise BadInput(f"{self._where}, stream {name}: {error}") from None
        except redis.RedisError as error:
            raise UnskewError(f"{self._where}: cannot be reached ({error})") from None

    def entries(self) -> Iterator[list[Entry]]:
        after = "0"  # what this process read before and did not acknowledge, and then what is new
        try:
            while True:
                found = self.client.xreadgroup(
                    self.group, self.consumer, {self.name: after}, count=self.batch, block=BLOCK_MS
                )
                batch = found[0][1] if found else []
                if after != ">":
                    after = batch[-1][0] if batch else ">"
                    if not batch:
                        continue
                elif not batch:
                    _, batch, *_ = self.client.xautoclaim(
                        self.name, self.group, self.consumer, TAKEN_OVER_MS, count=self.batch
                    )
                yield batch
        except self._redis.RedisError as error:
            raise UnskewError(f"{self._where}: the connection was lost ({error}); start again") from None

    def acknowledge(self, ids: list[str]) -> None:
        if ids:
            self.client.xack(self.name, self.group, *ids)

    def reject(self, entry: Entry, reason: str) -> None:
        self.client.xadd(f"{self.name}.rejected", {**entry[1], REASON: reason})


def follow(
    stream: Stream, store: Store, followed: Followed, *, until: Callable[[bool], bool] = lambda _: False
) -> None:
    """Store the events of a stream.

    Parameters
    ----------
    stream
        The stream.
    store
        A store that is open for writing.
    followed
        Counts what is read.
    until
        Called after each batch with whether there was nothing new; it ends when that returns True.
    """
    types = store.types
    for batch in stream.entries():
        events = []
        for entry in batch:
            try:
                event = event_of(entry, stream.name)
                if not types.declares(event.type):
                    raise BadEvent("type", f"{event.type!r} is not declared in the store")
                events.append(event)
            except BadEvent as error:
                stream.reject(entry, f"{error.field}: {error.reason}")
                followed.rejected += 1
        if events:
            appended = store.append(events)
            followed.accepted += appended.accepted
            followed.duplicates += appended.duplicates
        stream.acknowledge([number for number, _ in batch])  # only now: what is stored is on the disk
        if until(not batch):
            return


def event_of(entry: Entry, stream: str) -> Event:
    """The event that an entry of a stream is."""
    number, fields = entry
    document: Document = {name: _number(name, value) for name, value in fields.items()}
    if set(fields) == {"event"}:
        try:
            found: Any = json.loads(fields["event"])
        except ValueError:
            raise BadEvent("event", "expected a JSON object") from None
        if not isinstance(found, dict):
            raise BadEvent("event", "expected a JSON object")
        document = found
    document.setdefault("event_id", f"{stream}:{number}")
    if document.get("timestamp") is None:
        document["timestamp"] = in_iso(1000 * int(number.partition("-")[0]))
    return Event.of(document)


def _number(name: str, value: str) -> Any:
    """A field whose value is no text."""
    if name in NUMBERS:
        with suppress(ValueError):
            return json.loads(value)
    return value
