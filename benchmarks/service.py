"""A running service for benchmarks: a random log, `unskew serve` in a process of its own on loopback, and a
client that keeps its connection."""

import http.client
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import unskew

START = 1_600_000_000  # seconds since 1970, of the first event


def random_log(folder: Path, items: int, events: int, users: int = 20_000) -> unskew.Log:
    """A prepared log whose popularity falls as in real ones; times are seconds."""
    random = np.random.default_rng(0)
    item = np.concatenate([np.arange(items), (items * random.random(events - items) ** 3).astype(int)])
    user = np.concatenate([np.arange(users), random.integers(0, users, events - users)])
    times = START + np.sort(random.integers(0, 10**8, events))
    order = random.permutation(events)
    rows = {
        "user": [f"u{number}" for number in user[order]],
        "item": [f"i{number}" for number in item[order]],
        "time": times,
    }
    source = folder.with_suffix(".parquet")
    pq.write_table(pa.table(rows), source)
    return unskew.prepare(source, folder)


class Client:
    """One connection, which is opened again if it was lost."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the document of the answer."""
        headers = {"content-type": "application/json"}
        try:
            self.connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = self.connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise
        return answer.status, json.loads(text) if text else None


class Server:
    """A process of `unskew serve` with pulse-zero."""

    def __init__(self, data: Path, store: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "unskew", "serve", "pulse-zero", "--data", str(data)]
        command += ["--store", str(store), "--port", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()
        self.said: list[str] = []
        until = time.monotonic() + 300
        while time.monotonic() < until and self.process.poll() is None:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                continue
            self.said.append(line)
            if "ready:" in line:
                self.port = int(line.strip().rsplit(":", 1)[1])
                return
        self.stop()
        raise SystemExit("the service did not start: " + "".join(self.said))

    def _read(self, lines: "queue.Queue[str]") -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            lines.put(line)

    def cpu(self) -> float:
        """The CPU-seconds that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(60)


@contextmanager
def serving(data: Path, store: Path, *flags: str) -> Iterator[Server]:
    """A service that runs as long as the block does."""
    server = Server(data, store, *flags)
    try:
        yield server
    finally:
        server.stop()
