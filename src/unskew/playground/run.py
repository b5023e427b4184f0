"""The playground as a whole: the service, its nightly update, the shoppers and their page."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unskew.core.errors import UnskewError
from unskew.playground.shoppers import Client, Shoppers

NEW_EVENTS = 20  # with which a nightly update can be judged


@dataclass(frozen=True)
class Nights:
    """The nightly update: every so many days, in a process of its own. It publishes a run only if that is not
    significantly worse, and the service loads it."""

    folder: Path
    store: str
    every: int

    def pass_night(self, shoppers: Shoppers) -> None:
        """Train on with the newest events, and let the service load the run that is published."""
        runs = self.folder / "runs"
        out = runs / f"night-{len(list(runs.glob('night-*')))}"
        command = ["update", self.folder / "current", "--store", self.store, "--out", out]
        command += ["--current", self.folder / "current", "--least", NEW_EVENTS, "--epochs", 1, "--json"]
        words = [sys.executable, "-m", "unskew", *map(str, command)]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        try:
            outcome = json.loads(ended.stdout)
        except ValueError:
            shoppers.note_night("failed", ended.stderr.strip().splitlines()[-1] if ended.stderr else "")
            return
        if outcome["verdict"] == "published":
            try:
                shoppers.client.post("/v1/model/reload?wait=25")
            except UnskewError as error:
                shoppers.note_night("failed", str(error))
                return
        shoppers.note_night(outcome["verdict"], str(outcome.get("why", "")))


@contextmanager
def service(folder: Path, store: str, *flags: str) -> Iterator[str]:
    """A service of the shop's current run in a process of its own, on a free port; gives its address. It ends
    with the block. `flags` are further ones of `unskew serve`."""
    journal = folder / "service.log"
    command = ["serve", folder / "current", "--store", store, "--port", 0, "--noun", "product", *flags]
    words = [sys.executable, "-m", "unskew", *map(str, [*command, "--explore", 0.05])]
    with journal.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(words, stderr=file)
    try:
        while "ready: " not in (printed := journal.read_text(encoding="utf-8")):
            if process.poll() is not None:
                raise UnskewError(f"the service did not start: {printed.strip()[-500:]}")
            time.sleep(0.05)
        yield printed.split("ready: ")[1].split()[0]
    finally:
        process.terminate()
        process.wait()


def live(
    shoppers: Shoppers,
    seconds: float,
    stop: threading.Event,
    days: int | None = None,
    nights: Nights | None = None,
    on_error: Callable[[str], None] = print,
) -> None:
    """Let days pass until it is stopped, or so many.

    Parameters
    ----------
    shoppers
        The users.
    seconds
        The length of a day.
    stop
        Set to end it after the day that has begun.
    days
        The number of days; by default there is no end.
    nights
        The nightly update, if there is one. The days go on meanwhile.
    on_error
        What is done with a message about a day on which the service did not answer.
    """
    number = 0
    night: threading.Thread | None = None
    while not stop.is_set() and (days is None or number < days):
        begin = time.monotonic()
        try:
            shoppers.live()
        except UnskewError as error:
            on_error(str(error))
        number += 1
        if nights is not None and number % nights.every == 0 and (night is None or not night.is_alive()):
            night = threading.Thread(target=nights.pass_night, args=(shoppers,))
            night.start()
        stop.wait(max(0.0, seconds - (time.monotonic() - begin)))
    if night is not None:
        night.join()


def client_of(address: str, token_file: Path | None) -> Client:
    """The client of a service, with the token for writing if the service has tokens."""
    from unskew.serve.http.tokens import read_tokens

    return Client(address.rstrip("/"), "" if token_file is None else read_tokens(token_file)[0].write)
