"""The verbs of worlds whose ground truth is known: ground truth, and simulate with the kinds of worlds that
have names."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import RenderableType
from tyro.conf import OmitArgPrefixes, Positional

from unskew.cli.data import Simulate
from unskew.cli.shared import MovedData, RunVerb, notify, split_of_run, table
from unskew.cli.train import extended, flag_of
from unskew.core.errors import BadInput
from unskew.core.formatting import plain
from unskew.data.log.held_out import Criterion
from unskew.world.equations import Simulation
from unskew.world.kinds import KINDS, kind_named
from unskew.world.shop import SHOP

if TYPE_CHECKING:
    from unskew.evaluation.evaluate import Evaluation

DRAWS = 500  # of the bootstrap, for each interval
EXPLAINED = (
    "ndcg, fraction: of the best order. clicks: expected if these were shown. preference, exposure: rank "
    "correlation of the scores with each. beyond: the one with exposure, given preference. Intervals are "
    "over users and not over seeds."
)


@dataclass(frozen=True, kw_only=True)
class GroundTruth(RunVerb):
    """Compare what runs rank first with what users truly like, in the simulated world that they were trained
    in. Several runs are also compared with the first one, impression by impression."""

    folders: Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN")]]
    """Folders that `unskew train` made, all on the same log."""
    data: MovedData = None
    sample: int = 1000
    """How many impressions of the test set are asked, drawn at random; 0 is all of them."""
    seed: int = 0
    """Seed of this sample."""
    select_by: Criterion | None = None
    """Which validation metric chose the weights; by default those that recommend."""

    def run(self) -> None:
        from unskew.api.create import load
        from unskew.evaluation.significance import compare, interval
        from unskew.world.ground_truth import TrueScorer, evaluate_against_ground_truth, world_of

        if not self.folders:
            raise BadInput("expected at least one RUN, a folder that `unskew train` made")
        splits = [split_of_run(folder, self.data) for folder in self.folders]
        if len({cut.log.fingerprint() for cut in splits}) > 1:
            raise BadInput("the runs were not trained on the same log, so they cannot be compared")
        world, sample = world_of(splits[0].log), self.sample or None
        evaluations = [
            evaluate_against_ground_truth(
                load(folder), world, cut, sample, self.seed, select_by=self.select_by
            )
            for folder, cut in zip(self.folders, splits, strict=True)
        ]
        exposed = evaluate_against_ground_truth(
            TrueScorer(world, "exposure"), world, splits[0], sample, self.seed
        )
        metrics, first = list(exposed.values), self.folders[0]
        rows, runs, differences, intervals, compared = [], [], [], [], []
        for folder, evaluation in zip(self.folders, evaluations, strict=True):
            rows.append(_means(f"{folder} ({evaluation.about['model']})", evaluation))
            spread = {name: interval(evaluation, name, DRAWS) for name in metrics}
            about = {name: evaluation.about[name] for name in ("model", "training_seed", "weights_chosen_by")}
            runs.append({"run": str(folder), **about, "metrics": evaluation.metrics(), "intervals": spread})
            lines = [(name, evaluation.mean(name), *spread[name]) for name in metrics]
            intervals.append(_intervals(f"\n{folder}: 95 % intervals over users", lines))
            if evaluation is not evaluations[0]:
                each = {name: compare(evaluation, evaluations[0], name, DRAWS) for name in metrics}
                documents = {name: asdict(difference) for name, difference in each.items()}
                differences.append({"run": str(folder), "to": str(first), "metrics": documents})
                lines = [(name, of.difference, of.low, of.high) for name, of in each.items()]
                compared.append(_intervals(f"\n{folder} minus {first}, at the same impressions", lines))
        document = {
            "world": asdict(world.settings),
            "impressions": len(exposed.user),
            "impressions_of_the_test_set": exposed.about["whole_test"],
            "runs": runs,
            "true_exposure": exposed.metrics(),
            "differences": differences,
        }
        rows += [_means("the true exposure", exposed), ("the true preference", *_ideal(exposed))]
        title = f"{len(exposed.user):,} impressions of the test set, against the true preference of all items"
        self.show(plain(document), table(title, ("", *metrics), rows), *intervals, *compared)
        notify(EXPLAINED)


def _means(name: str, evaluation: "Evaluation") -> tuple[str, ...]:
    return name, *(f"{evaluation.mean(metric):.4f}" for metric in evaluation.values)


def _ideal(evaluation: "Evaluation") -> list[str]:
    """The row of the best order. Its correlation with exposure is left empty: the row of exposure has it."""
    best = {"ndcg": "1.0000", "fraction": "1.0000", "preference": "1.0000", "beyond": "0.0000"}
    for metric, values in evaluation.values.items():
        if metric.startswith("clicks"):
            ideal = values / evaluation.values[metric.replace("clicks", "fraction")]
            best["clicks"] = f"{ideal.mean():.4f}"
    return [best.get(metric.split("@")[0], "") for metric in evaluation.values]


def _intervals(title: str, lines: list[tuple[str, float, float, float]]) -> RenderableType:
    rows = [(name, f"{mean:+.4f}", f"{low:+.4f} to {high:+.4f}") for name, mean, low, high in lines]
    return table(title, ("", "mean", "95 % interval"), rows)


def simulate_of(arguments: list[str]) -> type[Simulate]:
    """The verb `simulate` with the settings of the kind of world that was named as the defaults of its
    flags."""
    name = flag_of(arguments, "--kind")
    settings = Simulation() if name in (None, SHOP) else kind_named(name)
    flags: Any = OmitArgPrefixes
    listed = " ".join(f"{each}: {kind.about}" for each, kind in KINDS.items())
    helped = f"A kind of world, whose settings are then the defaults of all other flags. {listed} "
    helped += "shop: views, carts and purchases, what is bought again, a promotion, and bots."
    kind = Annotated[str | None, tyro.conf.arg(metavar="NAME", help=helped)]
    return extended(Simulate, {"kind": (kind, name), "settings": (flags[Simulation], settings)})
