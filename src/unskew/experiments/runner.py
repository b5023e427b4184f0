"""One cell of a bench: train a model on a data set, and test it in every way that the data allow.

Validation chooses everything, the debiasing strength as well; the test set is ranked at the end. Where a
model has a debiasing strength, the tests are also ranked at each of its positions, to draw the trade-off;
nothing is chosen by that.
"""

import hashlib
import platform
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew.api.model import Model
from unskew.core.config import from_document
from unskew.core.errors import BadInput
from unskew.core.formatting import plain
from unskew.data.log.held_out import Protocol, available_tests, effective_size
from unskew.data.log.log import Log
from unskew.data.log.split import Split, Splitting, split
from unskew.diagnostics.propensity.health import training_weights
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.rolling import rolling
from unskew.evaluation.significance import interval
from unskew.experiments.bench_cell import METRIC, MIN_PATIENCE, BenchCell, Units, from_json
from unskew.experiments.cell_store import encode, pack_values
from unskew.experiments.grid import FORMAT, PlannedCell, Source
from unskew.models.base import Training, model_named
from unskew.models.pulse.model import STRENGTHS
from unskew.world.ground_truth import evaluate_against_ground_truth
from unskew.world.simulate import World, simulate

DIGITS = 5
IMPRESSIONS = 500  # of a simulated world for which the ground truth is asked
PER_WINDOW = 500  # positives that are ranked in a window of a time line
DRAWS = 500  # of the bootstrap of each interval

Json = dict[str, Any]


def run_cell(cell: PlannedCell, folder: Path) -> tuple[BenchCell, dict[str, Units]]:
    """Train and test a cell: its result, and the units of its tests by their keys.

    folder: where the run is kept while it is trained; a run that was stopped there goes on.
    """
    cut, world = open_source(cell.source, cell.splitting)
    config = from_document(model_named(cell.model).Config, dict(cell.config))
    model = Model(cell.model, config, Training(**cell.training))
    cpu, wall = time.process_time(), time.monotonic()
    model.fit(cut, folder, resume=(folder / "config.json").is_file(), show_progress=False)
    cost: Json = {
        "cpu_s": round(time.process_time() - cpu, 1),
        "wall_s": round(time.monotonic() - wall, 1),
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
    }
    units: dict[str, Units] = {}
    result: Json = {"key": cell.key, "format": FORMAT, "model": cell.model, "config": cell.config}
    result |= {"training": cell.training, "sample": cell.sample, "records": _records(model)}
    result["finished"] = is_finished(model)
    result |= {"rolling": cell.rolling and asdict(cell.rolling), "data": _data_summary(cell, cut)}
    result["settings_key"] = model.settings_key
    if cell.rolling is None:
        tests, result["strengths"] = _test(model, cut, world, cell.sample)
    else:
        whole, result["windows"] = _roll(model, cut, cell)
        tests = {"ordinary, full": whole}
    result["tests"] = {name: _stored_test(evaluation, units) for name, evaluation in tests.items()}
    result |= {"health": _health(model, cut), "versions": _versions()}
    result["cost"] = cost | {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
    return from_json(BenchCell, _rounded(plain(result))), units


def is_finished(model: Model) -> bool:
    """Whether a model was trained until no validation metric rose any more, with enough patience to know."""
    is_validated = any(record.valid for record in model.records)
    return model.is_finished and (not is_validated or model.training.patience >= MIN_PATIENCE)


@lru_cache(maxsize=2)
def open_source(source: Source, splitting: Splitting) -> tuple[Split, World | None]:
    """The split of a data set, and its world where there is one."""
    if source.world is not None:
        world = simulate(**asdict(source.world))
        return split(world.log, **asdict(splitting)), world
    return split(Log.open(Path(source.folder)), **asdict(splitting)), None


def _test(
    model: Model, cut: Split, world: World | None, sample: int
) -> tuple[dict[str, Evaluation], dict[str, dict[str, float]]]:
    """The evaluation in every test under every protocol, and, for a model with a debiasing strength, the
    metric of each test at every strength."""
    network = model.network
    strengths = (None, *STRENGTHS) if network.strengths or _has_adjustable_scores(network) else (None,)
    protocols: dict[str, tuple[Protocol, ...]] = {}
    for test in available_tests(cut):
        if test != "authors":  # the paper's own resampling of any log; its own rows are a named test
            protocols[test] = ("full",) if test == "shown" else ("full", "uni100")
        if test in cut.log.marks:
            protocols[test] = ("full", "uni100", "authors")
    evaluations: dict[str, Evaluation] = {}
    at_strengths: dict[str, dict[str, float]] = {}
    ranked = model.evaluate_each(cut, protocols, sample=sample, strengths=strengths, show_progress=False)
    for test, names in protocols.items():
        evaluations |= {f"{test}, {one.protocol}": one for one in ranked[test][: len(names)]}
        at_strengths[f"{test}, full"] = {  # the first protocol at every strength
            f"{one.about['debias']:g}": one.mean(METRIC) for one in ranked[test][len(names) :: len(names)]
        }
    if world is not None:
        by: Any = "shown" if "shown" in model.trained.weights else None

        def against_ground_truth(debias: float | None) -> Evaluation:
            return evaluate_against_ground_truth(model, world, cut, IMPRESSIONS, select_by=by, debias=debias)

        evaluations["ground-truth, full"] = against_ground_truth(None)
        at_strengths["ground-truth, full"] = {
            f"{debias:g}": against_ground_truth(debias).mean(METRIC)
            for debias in (STRENGTHS if len(strengths) > 1 else ())
        }
    return evaluations, {test: curve for test, curve in at_strengths.items() if curve}


def _has_adjustable_scores(network: Any) -> bool:
    """Whether a debiasing strength can be applied to the scores, because the model estimates exposure."""
    methods = ("logit-offset", "weighted-negatives")
    return network.correction is not None and network.correction.method in methods


def _stored_test(evaluation: Evaluation, units: dict[str, Units]) -> Json:
    """What is kept of an evaluation. Its units are stored once for all cells."""
    user = encode(evaluation.user.astype(np.int32))
    weight = encode(evaluation.weights.astype(np.float32))
    about = evaluation.about
    test: Json = {"test": evaluation.test, "protocol": evaluation.protocol, "size": len(evaluation.user)}
    test |= {"repeats": about["repeats"], "data": about["data"], "user": user, "weight": weight}
    rows = b"" if evaluation.rows is None else np.asarray(evaluation.rows, np.int64).tobytes()
    names = f"{evaluation.test} {evaluation.protocol} {about['data']}"
    key = hashlib.sha256(names.encode() + rows + user.encode() + weight.encode()).hexdigest()[:16]
    units[key] = Units(key=key, **test)
    segments = {
        name: {group: [part["units"], part.get(METRIC)] for group, part in groups.items()}
        for name, groups in evaluation.by_segment().items()
    }
    return {
        "units": key,
        "size": len(evaluation.user),
        "whole_test": about.get("whole_test"),
        "effective_sample_size": evaluation.effective_sample_size,
        "left_out": about.get("left_out", {}),
        "chosen_by": about.get("weights_chosen_by"),
        "debias": about.get("debias"),
        "metrics": evaluation.metrics(),
        "interval": interval(evaluation, METRIC, DRAWS),
        "segments": segments,
        "beyond": evaluation.beyond,
        "values": pack_values(evaluation),
    }


def _roll(model: Model, cut: Split, cell: PlannedCell) -> tuple[Evaluation, list[Json]]:
    """All windows along the time line together as one test, and the metric in each of them."""
    assert cell.rolling is not None
    clock, windows = cut.log.clock, cell.rolling.windows
    window, refresh = cell.rolling.window, cell.rolling.refresh
    if clock.ticks is None:  # an order has no days: the same number of windows, and of refreshes
        length = max(1, (int(cut.log.time.max()) + 1 - cut.valid_end) // windows)
        window, refresh = str(length), {"never": "never", "1d": str(length)}.get(refresh, str(7 * length))
    sample = min(PER_WINDOW, cell.sample)
    rolled = rolling(model, cut, window, refresh, "full", "ordinary", sample, windows=windows)
    parts = [part.evaluation for part in rolled.windows if part.evaluation is not None]
    if not parts:
        raise BadInput("no window at the end of this log has a positive to rank")
    whole = replace(
        parts[0],
        user=np.concatenate([part.user for part in parts]),
        values={name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values},
        weights=np.concatenate([part.weights for part in parts]),
        rows=np.concatenate([np.asarray(part.rows) for part in parts]),
        segments={},
        beyond={},
        about=parts[0].about | {"left_out": {}, "whole_test": None},
    )
    return whole, [
        {"start": clock.date(part.start), "trained_until": clock.date(part.trained_until), "value": value}
        for part, value in zip(rolled.windows, rolled.curve(), strict=True)
    ]


def _records(model: Model) -> list[Json]:
    """The losses and validation metrics of every epoch."""
    return [
        {"epoch": record.epoch, "stage": record.stage, "losses": record.losses}
        | {"valid": {name: metrics[METRIC] for name, metrics in record.valid.items()}}
        for record in model.records
    ]


def _health(model: Model, cut: Split) -> Json | None:
    """What the propensities of a model do to its loss; None for models without any."""
    seen = training_weights(model, cut)
    if seen is None:
        return None
    verdict = {"clip": seen.clip, "kind": seen.finding.kind, "verdict": seen.finding.sentence}
    if seen.exposure:
        return verdict
    weight = seen.weight
    return verdict | {
        "effective_fraction": effective_size(weight) / len(weight),
        "clipped": seen.clipped,
        "spread": np.quantile(weight / weight.mean(), [0.01, 0.25, 0.5, 0.75, 0.99]).tolist(),
    }


def _data_summary(cell: PlannedCell, cut: Split) -> Json:
    log = cut.log
    return {
        "name": cell.source.name,
        "hash": log.fingerprint(),
        "world": cell.source.world and asdict(cell.source.world),
        "splitting": asdict(cell.splitting),
        "train_before": str(log.clock.date(cut.train_end)),
        "test_from": str(log.clock.date(cut.valid_end)),
        "dated": log.clock.ticks is not None,
        "repeats": cut.repeats,
        "rows": len(log),
        "positives": log.positives,
        "users": len(log.users),
        "items": len(log.items),
    }


def _versions() -> dict[str, str]:
    own = {"unskew": version("unskew"), "python": platform.python_version()}
    return own | {"torch": torch.__version__, "numpy": np.__version__}


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value
