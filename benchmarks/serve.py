"""What the service gives: recommendations and durable events a second, beside the bare matrix product.

    python benchmarks/serve.py            measures (about five minutes), stores results/serve.jsonl, and
                                          writes the figures into docs/serving.md and README.md
    python benchmarks/serve.py --page     writes the figures only

On loopback, one process of `unskew serve` with pulse-zero on one thread, a random log, SQLite with full
synchronisation. A request has a history of 20 items and asks for 10. The bare product is that of one vector
of 64 numbers with a table of all items, and its ten largest: what any model with item vectors must do at
least.
"""

import json
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from pages import replace_between
from service import START, Client, Server, random_log, serving

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "serve.jsonl", ROOT / "docs" / "serving.md"
README = ROOT / "README.md"
SAID = r"\d+ ms per request with 100,000 items, [\d,]+ events per second"
MARKS = "<!-- made by benchmarks/serve.py -->", "<!-- end -->"
SIZES = {10_000: 200_000, 100_000: 500_000, 1_000_000: 2_000_000}  # items, and events of the log
REQUESTS, SECONDS, THREADS = 200, 8.0, 16
SEVERAL, CLIENTS = 100_000, 4  # items for which several processes are measured, and clients that ask them


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure the service, and write the figures into docs/serving.md."""

    page: bool = False
    """Write the figures only, from what is stored."""


def request(random: np.random.Generator, items: int) -> dict[str, Any]:
    """A history that nobody has had yet."""
    return {"history": [f"i{number}" for number in random.integers(0, items, 20)], "k": 10}


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Seconds of each call."""
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begin)
    return spent


def milliseconds(spent: list[float]) -> dict[str, float]:
    """The median and the 99th percentile."""
    low, high = np.quantile(spent, [0.5, 0.99]) * 1000
    return {"p50": round(float(low), 2), "p99": round(float(high), 2)}


def product(items: int) -> dict[str, float]:
    """The bare product of the same shapes."""
    torch.set_num_threads(1)
    vectors, context = torch.randn(64, items), torch.randn(1, 64)
    return milliseconds(timed(lambda: (context @ vectors).topk(10), 100))


def recommending(server: Server, items: int, seed: int) -> dict[str, float]:
    """One request after the other, each with a history of its own."""
    client, random = Client(server.port), np.random.default_rng(seed)

    def once() -> None:
        status, _ = client.ask("POST", "/v1/recommendations", request(random, items))
        assert status == 200, status

    timed(once, 10)
    before, begin = server.cpu(), time.perf_counter()
    spent = timed(once, REQUESTS)
    rate = REQUESTS / (time.perf_counter() - begin)
    cpu = 1000 * (server.cpu() - before) / REQUESTS
    return milliseconds(spent) | {"per_second": round(rate, 1), "cpu_ms": round(cpu, 2)}


def posting(
    server: Server, items: int, batch: int, threads: int, seconds: float, wait: float = 0.0
) -> dict[str, Any]:
    """Events that are acknowledged a second: threads that each post batches, one after the other."""
    until, counts, spent = time.perf_counter() + seconds, [0] * threads, list[float]()

    def work(place: int) -> None:
        client, random, posted = Client(server.port), np.random.default_rng([batch, place]), 0
        while time.perf_counter() < until:
            clock = START + 10**8 + int(time.time() * 10) % 10**7
            events = [
                {
                    "event_id": f"{batch}-{threads}-{wait}-{place}-{posted + number}",
                    "user_id": f"u{random.integers(0, 20_000)}",
                    "item_id": f"i{random.integers(0, items)}",
                    "type": "click",
                    "timestamp": clock,
                }
                for number in range(batch)
            ]
            begin = time.perf_counter()
            status, document = client.ask("POST", "/v1/events", {"events": events})
            spent.append(time.perf_counter() - begin)
            assert (status, document["accepted"]) == (200, batch), document
            posted += batch
            counts[place] = posted
            time.sleep(wait)

    crew = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for each in crew:
        each.start()
    for each in crew:
        each.join()
    return milliseconds(spent) | {"per_second": round(sum(counts) / seconds)}


def together(data: Path, store: Path, items: int, workers: int) -> float:
    """Requests a second from several clients at once."""
    with serving(data, store, "--workers", str(workers)) as server:
        until, counts = [0.0], [0] * CLIENTS

        def work(place: int) -> None:
            client, random = Client(server.port), np.random.default_rng([7, place])
            while time.perf_counter() < until[0]:
                status, _ = client.ask("POST", "/v1/recommendations", request(random, items))
                assert status == 200, status
                counts[place] += 1

        for seconds in (1.0, SECONDS):  # the first is not counted
            until[0], counts[:] = time.perf_counter() + seconds, [0] * CLIENTS
            crew = [threading.Thread(target=work, args=(place,)) for place in range(CLIENTS)]
            for each in crew:
                each.start()
            for each in crew:
                each.join()
    return round(sum(counts) / SECONDS, 1)


def measure(items: int, events: int, folder: Path) -> dict[str, Any]:
    """One size of catalogue."""
    data = folder / f"log-{items}"
    random_log(data, items, events)
    found: dict[str, Any] = {"items": items, "events_in_log": events}
    with serving(data, folder / f"store-{items}.db") as server:
        found["product"] = product(items)
        found["alone"] = recommending(server, items, 1)
        found["product_after"] = product(items)
        found["posted_singly"] = posting(server, items, 1, THREADS, SECONDS)
        found["posted_in_hundreds"] = posting(server, items, 100, 2, SECONDS)
        # Both at once: about a hundred events a second beside the requests.
        noise = threading.Thread(target=posting, args=(server, items, 1, 1, 4 * SECONDS, 0.01))
        noise.start()
        found["with_events"] = recommending(server, items, 2)
        noise.join()
    if items == SEVERAL:
        for workers in (1, 2):
            store = folder / f"workers-{workers}.db"
            found[f"workers_{workers}"] = together(data, store, items, workers)
    return found


def table(lines: list[dict[str, Any]]) -> str:
    """The figures as a table."""
    rows = [
        "| items | bare product p50 | request p50 / p99 | times the product | requests a second | CPU-ms | "
        "with 100 events a second: p50 / p99 |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for line in lines:
        bare = statistics.mean([line["product"]["p50"], line["product_after"]["p50"]])
        alone, busy = line["alone"], line["with_events"]
        rows.append(
            f"| {line['items']:,} | {bare:.2f} ms | {alone['p50']:.1f} / {alone['p99']:.1f} ms "
            f"| {alone['p50'] / bare:.1f} | {alone['per_second']:.0f} | {alone['cpu_ms']:.1f} "
            f"| {busy['p50']:.1f} / {busy['p99']:.1f} ms |"
        )
    singly, hundreds = (lines[0][name] for name in ("posted_singly", "posted_in_hundreds"))
    return (
        "\n".join(rows)
        + f"\n\nEvents that are acknowledged a second, each of them on the disk before the answer: "
        f"**{singly['per_second']:,}** one by one from {THREADS} clients (p50 {singly['p50']:.0f} ms, p99 "
        f"{singly['p99']:.0f} ms), **{hundreds['per_second']:,}** in hundreds from two.\n" + _several(lines)
    )


def _several(lines: list[dict[str, Any]]) -> str:
    (line,) = (line for line in lines if line["items"] == SEVERAL)
    one, two = line["workers_1"], line["workers_2"]
    return (
        f"\nWith {SEVERAL:,} items and {CLIENTS} clients at once, one process answers {one:.0f} requests a "
        f"second and two (`--workers 2`) answer {two:.0f}, {two / one:.1f} times as many, on two cores that "
        "they share with the clients.\n"
    )


def said(lines: list[dict[str, Any]]) -> str:
    """The one figure that the README has."""
    (large,) = (line for line in lines if line["items"] == 100_000)
    events = max(line["posted_in_hundreds"]["per_second"] for line in lines)
    return f"{large['alone']['p50']:.0f} ms per request with 100,000 items, {events:,} events per second"


def main(arguments: Arguments) -> None:
    """Measure, store, write."""
    if not arguments.page:
        with tempfile.TemporaryDirectory() as folder:
            lines = [measure(items, events, Path(folder)) for items, events in SIZES.items()]
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    stored = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    replace_between(PAGE, *MARKS, table(stored))
    README.write_text(re.sub(SAID, said(stored), README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
