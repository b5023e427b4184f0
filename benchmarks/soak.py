"""Everything at once, with two hundred kill -9: is anything lost, doubled, returned or wrong?

    python benchmarks/soak.py [--kills 200]   appends a line to results/soak.jsonl, and says it in
                                              docs/serving.md; --page does only the latter

Threads post events, describe items and ask for recommendations on loopback, another one reloads the model,
another one erases users, and a moment later the process is killed and started again on the same store and
the same log, which still has the erased users. Every fifth process is killed while it still loads. A client
whose connection was killed sends its request again. The service has business rules, and random items.

A start needs three CPU-seconds, nearly all of them to import torch. So that two hundred starts fit into
minutes, each process is forked from one that has imported the modules and done nothing else (`forkserver` of
multiprocessing). It is killed like any other.

In the end:

- no answer was 5xx, but for 503 while a process is not ready;
- every acknowledged event and list of a user who was not erased is in the store exactly once, and every item
  has the price that was acknowledged last;
- nothing of an erased user is in the store, and the service knows nothing that the user did;
- no list broke a rule;
- the answers equal those of a service on a new store that got the same events, items and erasures.
"""

import http.client
import json
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from pages import replace_between
from service import START, Client

import unskew
from unskew.serve.store.items import ItemRow
from unskew.serve.store.store import open_store

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "soak.jsonl", ROOT / "docs" / "serving.md"
MARKS = "<!-- made by benchmarks/soak.py -->", "<!-- end of the soak -->"
PRELOADED = ["unskew.cli.serve", "unskew.serve.http.process", "unskew.serve.http.connections"]
PRELOADED += ["unskew.serve.store.sqlite", "uvicorn", "pydantic.v1"]
ITEMS, POSTING, ASKING, PACE = 2_000, 3, 2, 0.05
USERS, KEPT = 300, 200  # all users, and those who are never erased
BRANDS, MOST_OF_BRAND, SOLD_OUT = 20, 3, 10  # every tenth item is sold out
RULES = f'default = ["in_stock = true", "at most {MOST_OF_BRAND} per brand", "price < 90"]\n'
LIFE = 0.3, 3.0  # seconds of a process that is ready
EARLY = 5  # one process of so many is killed before it is ready
FAULTS = {str(status) for status in range(500, 600)} - {"503"}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Stress a service, and say whether anything went wrong."""

    kills: int = 200
    """How often the process is killed."""
    minutes: float = 25.0
    """How long it lasts at most; if that is too short, there are fewer kills."""
    page: bool = False
    """Write the newest stored result into docs/serving.md, and do nothing else."""


def serve(folder: Path, store: str, port: int) -> None:
    """`unskew serve` in this process, with its messages in a file."""
    from unskew.cli.serve import Serve

    file = os.open(folder / f"{store}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 2)
    Serve(
        folder="pulse-zero",
        data=folder / "log",
        store=str(folder / store),
        port=port,
        explore=0.05,
        rules=folder / "rules.toml",
    ).run()


class Process:
    """A forked process of `unskew serve`."""

    def __init__(self, folder: Path, store: str, port: int) -> None:
        self.port, self._log = port, folder / f"{store}.log"
        self._log.unlink(missing_ok=True)
        context = multiprocessing.get_context("forkserver")
        self.process: ForkServerProcess = context.Process(target=serve, args=(folder, store, port))
        self.begin = time.monotonic()
        self.process.start()

    @property
    def ready(self) -> bool:
        """Whether it said that it is ready."""
        return self._log.exists() and "ready:" in self._log.read_text(errors="replace")

    def wait(self, seconds: float = 300) -> float:
        """Wait until it is ready, and return how long that took."""
        while not self.ready:
            if self.process.exitcode is not None or time.monotonic() > self.begin + seconds:
                raise SystemExit("the service did not start: " + self._log.read_text(errors="replace"))
            time.sleep(0.05)
        return time.monotonic() - self.begin

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.join()


class Crew:
    """What the threads share: where the service is, and what was seen."""

    def __init__(self, port: int) -> None:
        self.port, self.kills, self.ended = port, 0, False
        self.statuses: Counter[str] = Counter()
        self.events: dict[str, str] = {}  # the users of acknowledged events
        self.lists: dict[str, str] = {}  # and of acknowledged lists
        self.prices: dict[str, float] = {}  # acknowledged, by items
        self.asked: set[str] = set()  # users whose erasure was asked for
        self.erased: set[str] = set()  # and was acknowledged
        self.broken_rules = 0
        self.failures: list[str] = []  # of the threads themselves
        self.lock = threading.Lock()

    def run(self, work: Any, *arguments: Any) -> None:
        """The work of a thread; what fails in it ends the soak."""
        try:
            work(*arguments)
        except BaseException as error:
            self.failures.append(f"{work.__name__}: {error!r}")
            self.ended = True

    def count(self, what: str) -> None:
        """Count an answer, or what came instead."""
        with self.lock:
            self.statuses[what] += 1

    def ask(self, client: Client, method: str, path: str, body: Any) -> Any:
        """The answer, which is asked for until it comes; None when the soak ends."""
        while not self.ended:
            try:
                status, document = client.ask(method, path, body)
            except ConnectionRefusedError:  # no process listens
                self.count("refused")
                time.sleep(0.5)
            except (OSError, http.client.HTTPException, ValueError):  # it was killed meanwhile
                self.count("connection lost")
            else:
                self.count(str(status))
                if status in (200, 202):
                    return document
                if status != 503 and str(status) not in FAULTS:
                    raise AssertionError(f"{method} {path}: {status} {document}")
                time.sleep(0.2)
        return None

    def post(self, place: int) -> None:
        """Events, each sent until it is acknowledged."""
        client, chance, number = Client(self.port), np.random.default_rng(place), 0
        while not self.ended:
            events = [
                {
                    "event_id": f"{place}-{number + each}",
                    "user_id": f"u{chance.integers(0, USERS)}",
                    "item_id": f"i{chance.integers(0, ITEMS + 50)}",
                    "type": "click" if chance.random() < 0.7 else "view",
                    "timestamp": START + 10**8 + int(chance.integers(0, 10**6)),
                }
                for each in range(int(chance.integers(1, 6)))
            ]
            number += len(events)
            document = self.ask(client, "POST", "/v1/events", {"events": events})
            if document is not None:
                rejected = {each["index"] for each in document["rejected"]}
                stored = document["accepted"] + document["duplicates"] + len(rejected)
                assert stored == len(events), document
                with self.lock:  # only what an erased user did before is rejected
                    assert {str(events[index]["user_id"]) for index in rejected} <= self.asked, document
                    kept = [event for index, event in enumerate(events) if index not in rejected]
                    self.events.update({str(event["event_id"]): str(event["user_id"]) for event in kept})
            time.sleep(PACE)

    def recommend(self, place: int) -> None:
        """Lists for users and after histories, with rules of their own or without."""
        client, chance = Client(self.port), np.random.default_rng(1000 + place)
        while not self.ended:
            user = f"u{chance.integers(0, USERS)}"
            body: dict[str, Any] = {"user_id": user, "k": 10}
            if chance.random() < 0.5:
                body["history"] = [f"i{number}" for number in chance.integers(0, ITEMS, 5)]
            left_out = int(chance.integers(0, 2 * BRANDS))
            if left_out < BRANDS:
                body["rules"] = [f"exclude brand = b{left_out}"]
            document = self.ask(client, "POST", "/v1/recommendations", body)
            if document is not None:
                items = [int(item["item_id"][1:]) for item in document["items"]]
                brands = Counter(item % BRANDS for item in items)
                most = max(brands.values(), default=0)
                is_broken = (
                    left_out in brands or most > MOST_OF_BRAND or any(i % SOLD_OUT == 0 for i in items)
                )
                with self.lock:
                    self.broken_rules += is_broken
                    if document["recommendation_id"]:
                        self.lists[document["recommendation_id"]] = user
            time.sleep(PACE)

    def describe(self) -> None:
        """Prices of items, which rules read."""
        client, chance = Client(self.port), np.random.default_rng(5)
        while not self.ended:
            item, price = f"i{chance.integers(0, 200)}", float(chance.integers(1, 100))
            with self.lock:
                self.prices.pop(item, None)  # until it is acknowledged, either may be true
            body = {"items": [{"item_id": item, "features": {"price": price}}]}
            if self.ask(client, "PUT", "/v1/items", body) is not None:
                with self.lock:
                    self.prices[item] = price
            time.sleep(4 * PACE)

    def erase(self, kills: int) -> None:
        """Users are erased one after the other, evenly over the kills."""
        client = Client(self.port)
        for number in range(KEPT, USERS):
            while self.kills < kills * (number - KEPT) / (USERS - KEPT) and not self.ended:
                time.sleep(0.1)
            user = f"u{number}"
            with self.lock:
                self.asked.add(user)
            if self.ask(client, "DELETE", f"/v1/users/{user}", None) is None:
                return
            with self.lock:
                self.erased.add(user)

    def reload(self) -> None:
        """The model is loaded again."""
        client = Client(self.port)
        while not self.ended:
            time.sleep(3)
            self.ask(client, "POST", "/v1/model/reload", None)


def prepared(folder: Path) -> None:
    """A log with the features that the rules read, and the rules."""
    chance = np.random.default_rng(0)
    rows = 20_000
    item = np.concatenate([np.arange(ITEMS), (ITEMS * chance.random(rows - ITEMS) ** 3).astype(int)])
    user = np.concatenate([np.arange(USERS), chance.integers(0, USERS, rows - USERS)])
    order = chance.permutation(rows)
    table = {
        "user": [f"u{code}" for code in user[order]],
        "item": [f"i{code}" for code in item[order]],
        "time": START + np.sort(chance.integers(0, 10**8, rows)),
        "brand": [f"b{code % BRANDS}" for code in item[order]],
        "in_stock": [bool(code % SOLD_OUT) for code in item[order]],
        "price": (item[order] * 7 % 100).astype(float),
    }
    pq.write_table(pa.table(table), folder / "log.parquet")
    unskew.prepare(folder / "log.parquet", folder / "log", item_features="brand,in_stock,price")
    (folder / "rules.toml").write_text(RULES)


def free_port() -> int:
    """A port below those that the system gives to clients, which nothing else takes between two lives."""
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise SystemExit("there is no free port between 20,000 and 30,000")


def answers(port: int) -> list[Any]:
    """The lists of some users, and after some histories."""
    client, found = Client(port), []
    for number in range(40):
        body = {"user_id": f"u{number}", "k": 20, "log": False, "explore": 0}
        if number % 2:
            body = {"history": [f"i{number}", f"i{3 * number}"], "k": 20, "explore": 0}
        status, document = client.ask("POST", "/v1/recommendations", body)
        assert status == 200, document
        found.append([(item["item_id"], round(item["score"], 4)) for item in document["items"]])
    return found


def known_of(port: int, users: set[str]) -> int:
    """How many events the service knows of some users; a list that was shown to one since is none."""
    client, known = Client(port), 0
    for user in sorted(users):
        status, document = client.ask("GET", f"/v1/users/{user}")
        assert status in (200, 404), document
        known += document["positives"] + document["stored_events"] if status == 200 else 0
    return known


def wrong_prices(port: int, prices: dict[str, float]) -> int:
    """How many items do not have the price that was acknowledged last."""
    client = Client(port)
    found = {item: client.ask("GET", f"/v1/items/{item}")[1]["features"]["price"] for item in prices}
    return sum(found[item] != price for item, price in prices.items())


def live_and_die(crew: Crew, folder: Path, arguments: Arguments) -> tuple[Process, list[float]]:
    """Start and kill processes, and return the last one and how long the starts took."""
    until = time.monotonic() + 60 * arguments.minutes
    chance, starts = random.Random(0), list[float]()
    server = Process(folder, "store.db", crew.port)
    starts.append(server.wait())
    while crew.kills < arguments.kills and time.monotonic() < until and not crew.ended:
        if crew.kills % EARLY == EARLY - 1:
            time.sleep(chance.uniform(0, statistics.median(starts)))
        else:
            starts.append(server.wait())
            time.sleep(chance.uniform(*LIFE))
        server.kill()
        crew.kills += 1
        server = Process(folder, "store.db", crew.port)
    server.wait()
    return server, starts


def copied(folder: Path, crew: Crew) -> tuple[list[str], list[str]]:
    """Make a new store of what the store has, and return the ids of the store's events and lists."""
    with open_store(folder / "store.db", "read") as store:
        frames = list(store.events())
        ids = [one for frame in frames for one in frame["event_id"].to_pylist()]
        lists = [one for frame in store.recommendations() for one in frame["recommendation_id"].to_pylist()]
        with open_store(folder / "new.db", positive=store.types.positive) as new:
            for user in sorted({one for frame in frames for one in frame["user_id"].to_pylist()}):
                new.append(store.of_user(user))
            rows = [row for frame in store.items() for row in frame.to_pylist()]
            new.put_items(
                [ItemRow(row["item_id"], row["timestamp"], **json.loads(row["document"])) for row in rows]
            )
            # Of a user whose erasure was asked for at the very end, it may be done or not.
            if done := sorted(store.erasures().among(crew.asked)):
                new.erase(*done)
    return ids, lists


def lost(acknowledged: dict[str, str], stored: list[str], asked: set[str]) -> int:
    """How many acknowledged rows of users who were not to be erased are not in the store."""
    return len({one for one, user in acknowledged.items() if user not in asked} - set(stored))


def soak(folder: Path, arguments: Arguments) -> dict[str, Any]:
    """Run it, and return what happened."""
    begin = time.monotonic()
    prepared(folder)
    crew = Crew(free_port())
    works = [(crew.post, place) for place in range(POSTING)] + [
        (crew.recommend, place) for place in range(ASKING)
    ]
    works += [(crew.describe,), (crew.reload,), (crew.erase, arguments.kills)]  # type: ignore[list-item]
    threads = [threading.Thread(target=crew.run, args=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    server, starts = live_and_die(crew, folder, arguments)
    crew.ended = True
    for thread in threads:
        thread.join()
    if crew.failures:
        raise SystemExit("; ".join(crew.failures))
    server.kill()  # so that the log, which still has the erased users, is read once more
    server = Process(folder, "store.db", crew.port)
    server.wait()
    returned, prices = known_of(server.port, crew.erased), wrong_prices(server.port, crew.prices)
    after = answers(server.port)
    server.kill()
    ids, lists = copied(folder, crew)
    other = Process(folder, "new.db", crew.port)
    other.wait()
    fresh = answers(other.port)
    other.kill()
    return {
        "minutes": round((time.monotonic() - begin) / 60, 1),
        "kills": crew.kills,
        "start_seconds": round(statistics.median(starts), 2),
        "statuses": dict(crew.statuses),
        "server_errors": sum(crew.statuses[status] for status in FAULTS),
        "acknowledged": len(crew.events),
        "acknowledged_lists": len(crew.lists),
        "erased": len(crew.erased),
        "returned": returned + sum(crew.events.get(one) in crew.erased for one in ids),
        "lost": lost(crew.events, ids, crew.asked) + lost(crew.lists, lists, crew.asked),
        "doubled": len(ids) - len(set(ids)) + len(lists) - len(set(lists)),
        "prices": len(crew.prices),
        "wrong_prices": prices,
        "broken_rules": crew.broken_rules,
        "same_answers": after == fresh,
    }


def sentence(found: dict[str, Any]) -> str:
    """What happened, in words."""
    same = "equal to" if found["same_answers"] else "not equal to"
    answered = sum(number for status, number in found["statuses"].items() if status.isdigit())
    return (
        f"{found['minutes']:g} minutes of events, prices of items, requests under rules, reloads and "
        f"erasures with {found['kills']} kill -9: {found['acknowledged']:,} events and "
        f"{found['acknowledged_lists']:,} lists were acknowledged, {found['lost']} of them lost and "
        f"{found['doubled']} doubled; {found['erased']} users were erased, of whom "
        f"{found['returned']} events came back, from the log or from clients; {found['wrong_prices']} of "
        f"{found['prices']} items had another price than the one acknowledged last, and "
        f"{found['broken_rules']} lists broke a rule. {answered:,} requests were answered, "
        f"{found['server_errors']} of them with a 5xx but for 503, "
        f"{found['statuses'].get('connection lost', 0):,} lost their connection to a killed process, and "
        f"{found['statuses'].get('refused', 0):,} found no process that listened. In the end the answers "
        f"were {same} those of a new store with the same events, items and erasures.\n"
    )


def main(arguments: Arguments) -> int:
    """Run it, print what happened, and return 0 if nothing went wrong."""
    if arguments.page:
        newest = json.loads(RESULTS.read_text(encoding="utf-8").splitlines()[-1])
        replace_between(PAGE, *MARKS, sentence(newest))
        return 0
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as name:
        found = soak(Path(name), arguments)
    print(json.dumps(found, indent=1))
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    replace_between(PAGE, *MARKS, sentence(found))
    faults = ("server_errors", "lost", "returned", "doubled", "wrong_prices", "broken_rules")
    return int(any(found[name] for name in faults) or not found["same_answers"])


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments)))
