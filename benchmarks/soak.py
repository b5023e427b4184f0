"""Ten minutes of everything at once, with twenty kill -9: is anything lost, doubled or wrong?

    python benchmarks/soak.py [--minutes 10 --kills 20]   appends a line to results/soak.jsonl, and says it in
                                                          docs/serving.md; --page does only the latter

Threads post events and ask for recommendations on loopback, another one reloads the model, another one
erases users, and every half minute the process is killed and started again on the same store and the same
log, which still has the erased users. A request whose connection was killed is sent again, as a client would.
In the end:

- no answer was 5xx, but for 503 while a process is not ready;
- every acknowledged event of a user who was not erased is in the store exactly once;
- nothing of an erased user is in the store, and the service knows nothing that the user did;
- the answers equal those of a service on a new store that got the same events and erasures.
"""

import http.client
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from pages import replace_between
from service import START, Client, Server, random_log, serving

from unskew.serve.store.store import open_store

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "soak.jsonl", ROOT / "docs" / "serving.md"
MARKS = "<!-- made by benchmarks/soak.py -->", "<!-- end of the soak -->"
ITEMS, POSTING, ASKING, PACE = 2_000, 3, 2, 0.05
USERS, KEPT = 300, 200  # all users, and those who are never erased
FAULTS = {str(status) for status in range(500, 600)} - {"503"}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Stress a service, and say whether anything went wrong."""

    minutes: float = 10.0
    """How long it lasts."""
    kills: int = 20
    """How often the process is killed."""
    page: bool = False
    """Write the newest stored result into docs/serving.md, and do nothing else."""


class Crew:
    """What the threads fraction: where the service is now, and what was seen."""

    def __init__(self) -> None:
        self.port, self.ended = 0, False
        self.statuses: Counter[str] = Counter()
        self.acknowledged: dict[str, str] = {}  # users by events
        self.asked: set[str] = set()  # users whose erasure was asked for
        self.erased: set[str] = set()  # and was acknowledged
        self.sent = 0
        self.lock = threading.Lock()

    def ask(self, client: Client | None, method: str, path: str, body: Any) -> tuple[Client | None, Any]:
        """An answer, or None if the connection was lost or the service is not ready."""
        try:
            if client is None or client.port != self.port:
                client = Client(self.port)
            status, document = client.ask(method, path, body)
        except (OSError, http.client.HTTPException, ValueError):
            with self.lock:
                self.statuses["connection lost"] += 1
            time.sleep(0.3)
            return None, None
        with self.lock:
            self.statuses[str(status)] += 1
        if status == 503:
            time.sleep(0.3)
        return client, document if status == 200 else None

    def post(self, place: int) -> None:
        """Events, each sent until it is acknowledged."""
        client, random, number = None, np.random.default_rng(place), 0
        while not self.ended:
            size = int(random.integers(1, 6))
            events = [
                {
                    "event_id": f"{place}-{number + each}",
                    "user_id": f"u{random.integers(0, USERS)}",
                    "item_id": f"i{random.integers(0, ITEMS + 50)}",
                    "type": "click" if random.random() < 0.7 else "view",
                    "timestamp": START + 10**8 + int(random.integers(0, 10**6)),
                }
                for each in range(size)
            ]
            number += size
            document = None
            while document is None and not self.ended:
                client, document = self.ask(client, "POST", "/v1/events", {"events": events})
                with self.lock:
                    self.sent += size
            if document is not None:
                rejected = {each["index"] for each in document["rejected"]}
                users = {str(events[index]["user_id"]) for index in rejected}
                stored = document["accepted"] + document["duplicates"] + len(rejected)
                assert stored == size, document
                with self.lock:
                    assert users <= self.asked, document
                    self.acknowledged.update(
                        {
                            str(event["event_id"]): str(event["user_id"])
                            for index, event in enumerate(events)
                            if index not in rejected
                        }
                    )
            time.sleep(PACE)

    def recommend(self, place: int) -> None:
        """Lists for users and after histories."""
        client, random = None, np.random.default_rng(1000 + place)
        while not self.ended:
            body: dict[str, Any] = {"user_id": f"u{random.integers(0, USERS)}", "k": 10}
            if random.random() < 0.5:
                body = {"history": [f"i{number}" for number in random.integers(0, ITEMS, 5)]}
            client, _ = self.ask(client, "POST", "/v1/recommendations", body)
            time.sleep(PACE)

    def erase(self, pace: float) -> None:
        """Users are erased, one after the other."""
        client = None
        for number in range(KEPT, USERS):
            user, document = f"u{number}", None
            with self.lock:
                self.asked.add(user)
            while document is None and not self.ended:
                client, document = self.ask(client, "DELETE", f"/v1/users/{user}", None)
            if document is None:
                return
            with self.lock:
                self.erased.add(user)
            time.sleep(pace)

    def reload(self) -> None:
        """The model is loaded again."""
        client = None
        while not self.ended:
            time.sleep(3)
            client, _ = self.ask(client, "POST", "/v1/model/reload", None)


def answers(port: int) -> list[Any]:
    """The lists of some users, and after some histories."""
    client, found = Client(port), []
    for number in range(40):
        body = {"user_id": f"u{number}", "k": 20, "log": False}
        if number % 2:
            body = {"history": [f"i{number}", f"i{3 * number}"], "k": 20}
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


def sentence(found: dict[str, Any]) -> str:
    """What happened, in words."""
    same = "equal to" if found["same_answers"] else "not equal to"
    return (
        f"{found['minutes']:g} minutes of events, requests, reloads and erasures with {found['kills']} "
        f"kill -9: {found['acknowledged']:,} events were acknowledged, {found['lost']} of them lost and "
        f"{found['doubled']} doubled; {found['erased']} users were erased, of whom "
        f"{found['returned']} events came back, from the log or from clients; of "
        f"{sum(found['statuses'].values()):,} requests "
        f"{found['statuses'].get('connection lost', 0):,} lost their connection to a killed process, and "
        f"{found['server_errors']} got a 5xx but for 503; in the end the answers were {same} those of a new "
        "store with the same events and erasures.\n"
    )


def main(arguments: Arguments) -> int:
    """Run it, print what happened, and return 0 if nothing went wrong."""
    if arguments.page:
        newest = json.loads(RESULTS.read_text(encoding="utf-8").splitlines()[-1])
        replace_between(PAGE, *MARKS, sentence(newest))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder, crew = Path(name), Crew()
        random_log(folder / "log", ITEMS, 20_000, USERS)
        server = Server(folder / "log", folder / "store.db")
        crew.port = server.port
        threads = [threading.Thread(target=crew.post, args=(place,)) for place in range(POSTING)]
        threads += [threading.Thread(target=crew.recommend, args=(place,)) for place in range(ASKING)]
        threads += [threading.Thread(target=crew.reload)]
        pace = 50 * arguments.minutes / (USERS - KEPT)  # seconds between two erasures
        threads += [threading.Thread(target=crew.erase, args=(pace,))]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for kill in range(arguments.kills):
            wait = begin + 60 * arguments.minutes * (kill + 1) / (arguments.kills + 1) - time.monotonic()
            time.sleep(max(wait, 0))
            server.kill()
            server = Server(folder / "log", folder / "store.db")
            crew.port = server.port
        time.sleep(max(begin + 60 * arguments.minutes - time.monotonic(), 0))
        crew.ended = True
        for thread in threads:
            thread.join()
        server.kill()  # so that the log, which still has the erased users, is read once more
        server = Server(folder / "log", folder / "store.db")
        returned = known_of(server.port, crew.erased)
        after = answers(server.port)
        server.stop()
        with open_store(folder / "store.db", "read") as store:
            ids = [one for frame in store.events() for one in frame["event_id"].to_pylist()]
            with open_store(folder / "new.db", positive=store.types.positive) as new:
                for user in sorted({one for frame in store.events() for one in frame["user_id"].to_pylist()}):
                    new.append(store.of_user(user))
                # Of a user whose erasure was asked for at the very end, it may be done or not.
                if done := sorted(store.erasures().among(crew.asked)):
                    new.erase(*done)
        with serving(folder / "log", folder / "new.db") as other:
            fresh = answers(other.port)
    found = {
        "minutes": arguments.minutes,
        "kills": arguments.kills,
        "statuses": dict(crew.statuses),
        "server_errors": sum(crew.statuses[status] for status in FAULTS),
        "acknowledged": len(crew.acknowledged),
        "sent_with_repeats": crew.sent,
        "erased": len(crew.erased),
        "returned": returned + sum(crew.acknowledged.get(one) in crew.erased for one in ids),
        "lost": len({one for one, user in crew.acknowledged.items() if user not in crew.asked} - set(ids)),
        "doubled": len(ids) - len(set(ids)),
        "same_answers": after == fresh,
    }
    print(json.dumps(found, indent=1))
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    replace_between(PAGE, *MARKS, sentence(found))
    wrong = (
        found["server_errors"]
        or found["lost"]
        or found["returned"]
        or found["doubled"]
        or not found["same_answers"]
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments)))
