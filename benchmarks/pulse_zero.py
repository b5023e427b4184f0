"""Learn the weights that come with the package, src/unskew/models/pulse-zero.safetensors.

    python benchmarks/pulse_zero.py learn     [--data ../shared/data]
    python benchmarks/pulse_zero.py leave-out [--data ../shared/data]

They are learned on MovieTweetings (MIT), Online Retail (CC BY 4.0, doi 10.24432/C5BW33) and simulated worlds,
because these licences allow it: on the training part of each, with as many rows of each, and with no look at
any validation or test part. `leave-out` learns without one of the two real logs at a time and ranks the
validation part of the one left out, which is how the recipe was chosen. The file says what it was made from.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from safetensors.torch import save_file

import unskew
from unskew.data.held_out import held_out
from unskew.evaluate import evaluation, rank_each
from unskew.models.base import build
from unskew.models.pulse import DIALS, ZERO, Pulse, PulseBatch, PulseSampler

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "MovieTweetings": ("movietweetings_100k/ratings.csv.gz", {"positive": 7}),
    "Online Retail": ("online_retail", {}),
}
# Of several kinds: how strong the bias of exposure is, and how long the log.
WORLDS: dict[str, dict[str, Any]] = {
    f"simulated, bias {bias:g}": {"users": 2000, "items": 300, "steps": 200, "bias": bias, "seed": 5}
    for bias in (0.0, 1.0)
}
LEARNED = ("of_", "last", "item_skip", "walk_skip", "exposure_", "mean_", "scale_")
EPOCHS, BATCH, RATE, DECAY = 10, 128, 5e-3, 1e-5


@dataclass(frozen=True)
class Source:
    """A log that is learned from: what was measured on it, and its rows."""

    split: unskew.Split
    model: Pulse
    rows: PulseBatch


def source(name: str, data: Path) -> Source:
    if name in REAL:
        path, settings = REAL[name]
        split = unskew.split(unskew.read(data / path, **settings))
    else:
        split = unskew.split(unskew.simulate(**WORLDS[name]).log)
    model = build(Pulse, split, Pulse.Config())
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
        names = [*REAL, *WORLDS]
        network = learned([source(name, self.data) for name in names], self.seed)
        kept = {name: value for name, value in network.state_dict().items() if name.startswith(LEARNED)}
        said = {"made by": "python benchmarks/pulse_zero.py learn", "seed": self.seed, "from": names}
        save_file(kept, ZERO, {"unskew": json.dumps(said)})
        print(f"{ZERO}: {ZERO.stat().st_size:,} bytes")


@dataclass(frozen=True, kw_only=True)
class LeaveOut:
    """For each real log: learn on the other one and the worlds, and rank the validation part of this one."""

    data: Path = DATA
    rows: int = 1000

    def __call__(self) -> None:
        torch.set_num_threads(1)
        sources = {name: source(name, self.data) for name in (*REAL, *WORLDS)}
        for name in REAL:
            network = learned([each for other, each in sources.items() if other != name])
            split = sources[name].split
            network.suit(split)
            tested = {test: held_out(split, "valid", test) for test in ("ordinary", "balanced")}
            rows = held_out(split, "valid", "ordinary", self.rows).rows
            for dial, ranked in zip(DIALS, rank_each(network, split, rows, DIALS), strict=True):
                found = {
                    test: evaluation(split, ranked, "full", part, segmented=False).mean("ndcg@10")
                    for test, part in tested.items()
                }
                print(name, f"dial {dial:g}", {test: round(value, 4) for test, value in found.items()})


if __name__ == "__main__":
    verbs: dict[str, Any] = {"learn": Learn, "leave-out": LeaveOut}
    tyro.extras.subcommand_cli_from_dict(verbs)()
