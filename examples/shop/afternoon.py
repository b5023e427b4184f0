"""A simulated shop from its first file to an A/B test and a deletion request. docs/shop.md explains it.

    python examples/shop/afternoon.py FOLDER [--users 400 --items 150 --days 60]

Everything is written into FOLDER, which must not exist. The service listens on a free port of this machine.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc
import tyro
from pyarrow import csv

LIVE_DAYS = 7  # the last days of the simulation are the live week
SECONDS = 86400


@dataclass(frozen=True)
class Arguments:
    """How large the shop is, and where its files go."""

    folder: tyro.conf.Positional[Path]
    users: int = 400
    items: int = 150
    days: int = 60


def unskew(*arguments: object) -> None:
    """One command on the command line; it must succeed."""
    print(f"\n$ unskew {' '.join(map(str, arguments))}", flush=True)
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "unskew", *map(str, arguments)], check=True)
    print(f"[{time.monotonic() - began:.1f} s]", flush=True)


@contextmanager
def service(journal: Path, *arguments: object) -> Iterator[str]:
    """A running service, which writes a line for each request into its journal; gives its address."""
    command = ["serve", *map(str, arguments), "--port", "0", "--noun", "product", "--explore", "0.1"]
    print(f"\n$ unskew {' '.join(command)} &", flush=True)
    with journal.open("w", encoding="utf-8") as file:
        process = subprocess.Popen([sys.executable, "-m", "unskew", *command], stderr=file)
    try:
        while "ready: " not in (said := journal.read_text(encoding="utf-8")):
            if process.poll() is not None:
                raise SystemExit(said)
            time.sleep(0.05)
        yield said.split("ready: ")[1].split()[0]
    finally:
        process.terminate()
        process.wait()


def ask(address: str, body: Any = None, method: str = "POST", **parameters: Any) -> Any:
    """Send a document to the service and return the answer."""
    url = f"{address}?{urlencode(parameters)}" if parameters else address
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json"}, method=method)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def live(address: str, purchases: list[dict[str, Any]]) -> int:
    """Customers come back: each is shown a list first, and then buys what it bought in the simulation. If
    that was in the list, the purchase names the list. Returns how many were."""
    answered = 0
    for number, purchase in enumerate(purchases):
        shown = ask(f"{address}/v1/recommendations", {"user_id": purchase["user_id"], "k": 10})
        event = {"event_id": f"{address}-{number}", "type": "purchase"}
        event |= {name: purchase[name] for name in ("user_id", "item_id")}
        if purchase["item_id"] in [item["item_id"] for item in shown["items"]]:
            event["recommendation_id"] = shown["recommendation_id"]
            answered += 1
        ask(f"{address}/v1/events", {"events": [event]})
    return answered


def files(folder: Path) -> list[dict[str, Any]]:
    """Cut the simulation: past.csv is what happened before the live week, and items.csv what is known of the
    items. Returns the purchases of the live week. Times are moved so that the simulation ends now."""
    events = csv.read_csv(folder / "events.csv")
    newest = pc.max(events["timestamp"]).as_py()
    moved = pc.add(events["timestamp"], int(time.time()) - newest - 60)
    events = events.set_column(events.column_names.index("timestamp"), "timestamp", moved)
    border = int(time.time()) - LIVE_DAYS * SECONDS
    is_past = pc.less(events["timestamp"], border)
    csv.write_csv(events.filter(is_past), folder / "past.csv")
    first = events.filter(is_past).group_by("item_id", use_threads=False)
    feed = first.aggregate([("timestamp", "min"), ("category", "first"), ("price", "first")])
    feed = feed.rename_columns(["item_id", "known_since", "category", "price"])
    csv.write_csv(feed.append_column("in_stock", pa.array([True] * len(feed))), folder / "items.csv")
    later = events.filter(pc.and_(pc.invert(is_past), pc.equal(events["event_type"], "purchase")))
    rows: list[dict[str, Any]] = later.select(["user_id", "item_id"]).to_pylist()
    return rows


def afternoon(given: Arguments) -> None:
    """All steps, in order."""
    folder, store = given.folder, given.folder / "store.db"
    folder.mkdir(parents=True)
    size = ("--users", given.users, "--items", given.items, "--steps", given.days)
    unskew("simulate", "--kind", "shop", *size, "--out", folder / "events.csv")
    purchases = files(folder)

    types = ("--type", "event_type", "--target", "purchase", "--context", "view,cart")
    feed = ("--items", folder / "items.csv", "--items-time", "known_since")
    unskew("prepare", folder / "past.csv", "--out", folder / "all", *types, *feed)
    unskew("inspect", folder / "all", "--suggest-drop", folder / "robots.txt")
    robots = ("--drop-users", folder / "robots.txt")
    unskew("prepare", folder / "past.csv", "--out", folder / "data", *types, *feed, *robots)
    left_out = (folder / "robots.txt").read_text(encoding="utf-8").split()
    purchases = [purchase for purchase in purchases if purchase["user_id"] not in left_out]
    unskew("audit", folder / "data")
    unskew("train", folder / "data", "--out", folder / "tested")
    for test in ("balanced", "untouched:2h"):
        unskew("evaluate", folder / "tested", "--test", test)
    unskew("train", folder / "data", "--refit", folder / "tested", "--out", folder / "live")

    someone = purchases[0]["user_id"]
    unskew("recommend", folder / "live", "--user", someone, "--k", 5, "--explain")
    unskew("recommend", folder / "live", "--user", someone, "--k", 5, "--rule", "price < 50")

    half = len(purchases) // 2
    unskew("items", "import", folder / "items.csv", "--store", store, "--time", "known_since")
    with service(folder / "service.log", folder / "live", "--store", store) as address:
        print(f"{live(address, purchases[:half])} of {half} purchases were in the list that was shown before")
    unskew("update", folder / "live", "--store", store, "--out", folder / "newer", "--least", 5)

    with service(
        folder / "service.log", folder / "live", "--store", store, "--variant", f"B={folder / 'newer'}:0.5"
    ) as address:
        print(f"{live(address, purchases[half:])} of {len(purchases) - half} purchases, with two variants")
    unskew("experiment", "results", "--store", store, "--enough", 5)
    unskew("monitor", "--store", store, "--run", folder / "newer")

    runs = [part for run in ("tested", "live", "newer") for part in ("--run", folder / run)]
    unskew("erase", someone, "--store", store, *runs, "--data", folder / "data")
    with service(folder / "service.log", folder / "newer", "--store", store) as address:
        try:
            ask(f"{address}/v1/users/{someone}", method="GET")
        except HTTPError as answer:
            print(f"what the service knows of {someone} now: {answer.code} {answer.reason}")


if __name__ == "__main__":
    afternoon(tyro.cli(Arguments))
