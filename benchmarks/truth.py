"""The theorems of the paper where the ground truth is known: bias and deviation of the weighted loss against
the clip M.

    python benchmarks/truth.py [--tables-only]

The figures go to results/theorems.jsonl, one line a clip; the picture to docs/ground-truth.svg, the page to
docs/ground-truth.md.
`--tables-only` draws both again from that file.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from theorems import UNCLIPPED, TruePropensity, redrawn

from unskew.report.charts import Lines, picture
from unskew.world.equations import Simulation
from unskew.world.simulate import simulate

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE, PAGE = (
    ROOT / "results" / "theorems.jsonl",
    ROOT / "docs" / "ground-truth.svg",
    ROOT / "docs" / "ground-truth.md",
)

WORLD = Simulation(users=1000, items=200, steps=60, impressions=0.1, shown=10.0, seed=3)
CLIPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, kw_only=True)
class Settings:
    impressions: int = 200
    draws: int = 400
    seed: int = 5
    tables_only: bool = False


def measured(settings: Settings) -> list[dict[str, Any]]:
    """Every figure is a fraction of the ideal loss. First the naive loss, then the weighted one without a
    clip."""
    world = simulate(**asdict(WORLD))
    drawn = redrawn(world, settings.impressions, settings.draws, settings.seed)

    def line(name: str, losses: Any, **more: Any) -> dict[str, Any]:
        bias, deviation = losses.mean() / drawn.ideal - 1, losses.std(ddof=1) / drawn.ideal
        return {
            "loss": name,
            "bias": bias,
            "deviation": deviation,
            "z": bias / deviation * math.sqrt(settings.draws),
            **more,
        }

    about = {
        "pairs": drawn.chance_VI.size,
        "draws": settings.draws,
        "impressions": settings.impressions,
        "items": WORLD.items,
    }
    found = [line("naive", drawn.naive(), **about)]
    for views in ("item", "user", "both"):
        weight = TruePropensity(world, views=views).weights(drawn.pairs)
        found.append(
            line(
                f"weighted, {views}",
                drawn.weighted(weight),
                clip=None,
                exact_deviation=_deviation(drawn.variance(UNCLIPPED), drawn),
            )
        )
    for clip in CLIPS:
        weight = TruePropensity(world, clip=clip).weights(drawn.pairs)
        found += [line("self-normalised", drawn.self_normalised(weight), clip=clip)]
        found += [line("doubly robust", drawn.doubly_robust(weight), clip=clip)]
        losses = drawn.weighted(weight)
        found.append(
            line(
                "clipped",
                losses,
                clip=clip,
                clipped=float((drawn.chance_VI < clip).mean()),
                exact_bias=float(drawn.bias(clip).sum()) / drawn.ideal,
                exact_deviation=_deviation(drawn.variance(clip), drawn),
                bound=_deviation(drawn.bound(clip), drawn),
                worst_pair=float((drawn.variance(clip) / drawn.bound(clip)).max()),
            )
        )
    return found


def _deviation(variance: Any, drawn: Any) -> float:
    return math.sqrt(float(variance.sum())) / float(drawn.ideal)


def drawing(records: list[dict[str, Any]]) -> str:
    clipped = [record for record in records if record["loss"] == "clipped"]
    naive = next(record for record in records if record["loss"] == "naive")
    clip = [record["clip"] for record in clipped]
    bias = [100 * abs(record["exact_bias"]) for record in clipped]
    deviation = [100 * record["exact_deviation"] for record in clipped]
    losses = {
        "deviation": deviation,
        "bias": bias,
        "root mean square": [math.hypot(*pair) for pair in zip(bias, deviation, strict=True)],
        "naive loss": [100 * abs(naive["bias"])] * len(clip),
    }
    bounds = {"deviation": deviation, "Theorem 2's bound": [100 * record["bound"] for record in clipped]}
    left = Lines(clip, losses, "clip M", "% of the ideal loss", "Bias against deviation", logarithmic=True)
    right = Lines(clip, bounds, "clip M", "% of the ideal loss", "Deviation and bound", logarithmic=True)
    return picture(
        (left, right),
        "ground-truth",
        "Bias, deviation and its bound of the clipped weighted loss against the clip M",
    )


def percent(fraction: float) -> str:
    return f"{100 * fraction:+.2f}"


def page(records: list[dict[str, Any]]) -> str:
    naive, *others = records
    whole = [record for record in others if record["clip"] is None]
    clipped = [record for record in others if record["loss"] == "clipped"]
    rivals = {(record["loss"], record["clip"]): record for record in others if record["clip"] is not None}
    estimators = "\n".join(
        f"| {clip:g} |"
        + "".join(
            f" {percent(one['bias'])} | {100 * one['deviation']:.2f} | "
            f"{100 * math.hypot(one['bias'], one['deviation']):.2f} |"
            for one in (rivals[loss, clip] for loss in ("clipped", "self-normalised", "doubly robust"))
        )
        for clip in CLIPS
    )
    unclipped = "\n".join(
        f"| {record['loss']} | {percent(record['bias'])} | {100 * record['deviation']:.2f} | "
        f"{record['z']:+.1f} |"
        for record in (naive, *whole)
    )
    clips = "\n".join(
        f"| {record['clip']:g} | {100 * record['clipped']:.1f} | {percent(record['bias'])} | "
        f"{percent(record['exact_bias'])} |"
        f" {100 * record['deviation']:.2f} | {100 * record['exact_deviation']:.2f} | "
        f"{100 * record['bound']:.2f} |"
        f" {record['worst_pair']:.3f} |"
        for record in clipped
    )
    best = min(clipped, key=lambda record: math.hypot(record["exact_bias"], record["exact_deviation"]))
    worse = next(
        (record["clip"] for record in clipped if abs(record["exact_bias"]) > abs(naive["bias"])), None
    )
    beyond = f" From M = {worse:g} on, its bias is larger than the naive loss's." if worse is not None else ""
    return f"""# The theorems, where the ground truth is known

This page checks the paper's theorems, the tests and the corrections in simulated worlds. In such a world
the probability of every exposure is known. For the theorems, {naive["impressions"]} impressions of a log
are kept, with all {naive["items"]} items and what the user would have liked among them ({naive["pairs"]:,}
pairs). Then only the exposure is drawn again, {naive["draws"]} times. The loss is the binary cross-entropy
of a fixed prediction, the click rates of the user and of the item. All figures are in percent of the ideal
loss, which is the sum over all pairs.

![Bias, deviation and its bound against the clip](ground-truth.svg)

## Theorem 1: weighted by the true propensities, the loss is unbiased

| loss | bias | deviation of a draw | standard errors off |
| --- | ---: | ---: | ---: |
{unclipped}

The naive loss is the mean over the shown pairs, times the number of all pairs. A pair has one true
propensity, the same for both views. The two views and their combination therefore agree to the last digit
here, which estimated ones do not.

## Theorem 2: the clip trades variance for bias

| M | clipped pairs, % | bias, drawn | exact | deviation, drawn | exact | bound | worst pair |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{clips}

*bound* is the deviation if every pair had the variance of Theorem 2, (1/M - 1) delta². *worst pair* is the
largest ratio of a pair's variance to its bound; by the theorem it is at most 1. Bias and deviation together
are smallest near M = {best["clip"]:g} in this world.{beyond} The bias is that of the loss as a sum. A part
of it only multiplies all weights by the same factor, which changes the scale of the loss and not its
optimum.

The paper states the bound for every M in (0, 1), but it holds only for M up to 1/2. A clipped pair has the
variance P (1 - P) / M² delta². For 1 - M < P < M this is above (1/M - 1) delta²: with P = 0.5 and M = 0.9, it
is 0.31 instead of 0.11.

## Other estimators

The table shows the bias, the deviation of a draw, and both together (root mean square), with the same clipped
weights:

| M | clipped: bias | dev. | both | self-normalised: bias | dev. | both | doubly robust: bias | dev. | both |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{estimators}

*Self-normalised* (`snips`) divides by the mean weight. This lowers the deviation, and what the clip removes
is put back at the rate of the shown pairs. *Doubly robust* predicts the loss of every pair and corrects the
prediction on the shown pairs. The prediction here is the mean loss of the item's shown pairs, which brings
the bias of the shown pairs back. It is no better than dividing by the mean weight, except for clips with
which no estimator is good. unskew therefore has no such option.

Made by `python benchmarks/truth.py` from [results/theorems.jsonl](../results/theorems.jsonl); tested
in [tests/world/test_ground_truth.py](../tests/world/test_ground_truth.py).
"""


def main(settings: Settings) -> None:
    if not settings.tables_only:
        records = measured(settings)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    records = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    PICTURE.write_text(drawing(records) + "\n", encoding="utf-8")
    # What other benchmarks wrote on the page stays below.
    _, mark, others = PAGE.read_text(encoding="utf-8").partition("\n<!-- made by ")
    PAGE.write_text(page(records) + mark + others, encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Settings))
