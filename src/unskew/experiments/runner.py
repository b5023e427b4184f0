"""One cell of a bench: train a model on a data set, test it in every way that the data allow, and put all
that was found into one document.

Validation chooses everything, the debiasing strength as well; the test set is ranked at the end. Where a
model has a debiasing strength, the tests are also ranked at each of its positions, to draw the trade-off;
nothing is chosen by that.
"""

import hashlib
import platform
import resource
import time
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
from unskew.data.log.split import Split, split
from unskew.diagnostics.propensity.health import training_weights
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.rolling import rolling
from unskew.evaluation.significance import interval
from unskew.experiments.cell_store import encoded, packed
from unskew.experiments.intervals import METRIC
from unskew.experiments.suite import FORMAT, Cell, Source
from unskew.models.base import Training, model_named
from unskew.models.pulse.model import STRENGTHS
from unskew.world.ground_truth import evaluate_against_ground_truth
from unskew.world.simulate import World, simulate

DIGITS = 5
IMPRESSIONS = 500  # of a simulated world at which the ground truth is asked
PER_WINDOW = 500  # positives that are ranked in a window of a time line
DRAWS = 500  # of the bootstrap of each interval


def measured(cell: Cell, folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The document of a cell, and the units of its tests by their keys.

    folder: where the run is kept while it is trained; a run that was stopped there goes on.
    """
    kind = model_named(cell.model)
    cut, world = opened(cell.source, cell.splitting)
    model = Model(cell.model, from_document(kind.Config, dict(cell.config)), Training(**cell.training))
    used, began = time.process_time(), time.monotonic()
    model.fit(cut, folder, resume=(folder / "config.json").is_file(), show_progress=False)
    cost = {"cpu_s": round(time.process_time() - used, 1), "wall_s": round(time.monotonic() - began, 1)}
    cost["parameters"] = sum(parameter.numel() for parameter in model.network.parameters())
    units: dict[str, dict[str, Any]] = {}
    document: dict[str, Any] = {"key": cell.key, "format": FORMAT, "model": cell.model, **_said(cell)}
    document |= {"settings_key": model.settings_key}
    document |= {"data": _described(cell, cut), "cost": cost, "records": _records(model)}
    if cell.rolling is None:
        document["tests"] = _tested(model, cut, world, cell.sample, units)
        document["strengths"] = _at_strengths(document["tests"])
    else:
        document["tests"], document["windows"] = _rolled(model, cut, cell, units)
    document["health"] = _health(model, cut)
    document["versions"] = _versions()
    document["cost"]["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return _rounded(plain(document)), units


@lru_cache(maxsize=2)
def opened(source: Source, splitting: Any) -> tuple[Split, World | None]:
    """The split of a data set, and its world where there is one."""
    if source.world is not None:
        world = simulate(**asdict(source.world))
        return split(world.log, **asdict(splitting)), world
    return split(Log.open(Path(source.folder)), **asdict(splitting)), None


def _tested(
    model: Model, cut: Split, world: World | None, sample: int, units: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What every test found, by its name and protocol: each is ranked once."""
    found: dict[str, Any] = {}
    network = model.network
    strengths = (None, *STRENGTHS) if network.strengths or _turns(network) else (None,)
    tests: dict[str, tuple[Protocol, ...]] = {}
    for test in available_tests(cut):
        if test != "authors":  # the paper's own resampling of whatever log; its own rows are a named test
            tests[test] = ("full",) if test == "shown" else ("full", "uni100")
        if test in cut.log.marks:
            tests[test] = ("full", "uni100", "authors")
    every = model.evaluate_each(cut, tests, sample=sample, strengths=strengths, show_progress=False)
    for test, protocols in tests.items():
        each, several = every[test], len(protocols)
        for one in each[:several]:
            found[f"{test}, {one.protocol}"] = _one(one, units)
        turned = {f"{one.about['debias']:g}": one.mean(METRIC) for one in each[several::several]}
        found[f"{test}, full"]["strengths"] = turned
    if world is not None:
        by: Any = "shown" if "shown" in model.trained.weights else None
        found["ground-truth, full"] = _one(
            evaluate_against_ground_truth(model, world, cut, IMPRESSIONS, select_by=by), units
        )
        if len(strengths) > 1:
            at = {
                debias: evaluate_against_ground_truth(
                    model, world, cut, IMPRESSIONS, select_by=by, debias=debias
                )
                for debias in STRENGTHS
            }
            found["ground-truth, full"]["strengths"] = {
                f"{debias:g}": one.mean(METRIC) for debias, one in at.items()
            }
    return found


def _turns(network: Any) -> bool:
    """Whether the scores of a model can be turned, because it knows how exposed items are."""
    methods = ("logit-offset", "weighted-negatives")
    return network.correction is not None and network.correction.method in methods


def _one(found: Evaluation, units: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is kept of an evaluation. Its units are stored once for all cells."""
    user, weight = encoded(found.user.astype(np.int32)), encoded(found.weights.astype(np.float32))
    about = found.about
    said: dict[str, Any] = {"test": found.test, "protocol": found.protocol, "size": len(found.user)}
    said |= {"repeats": about["repeats"], "data": about["data"], "user": user, "weight": weight}
    rows = b"" if found.rows is None else np.asarray(found.rows, np.int64).tobytes()
    key = _digest(
        f"{found.test} {found.protocol} {about['data']}".encode(), rows, user.encode(), weight.encode()
    )
    units[key] = said
    kept: dict[str, Any] = {"units": key, "size": len(found.user), "whole_test": about.get("whole_test")}
    kept |= {"effective_sample_size": found.effective_sample_size, "left_out": about.get("left_out", {})}
    kept |= {"chosen_by": about.get("weights_chosen_by"), "debias": about.get("debias")}
    kept |= {"metrics": found.metrics(), "interval": interval(found, METRIC, DRAWS)}
    segments = {
        name: {group: [part["units"], part.get(METRIC)] for group, part in groups.items()}
        for name, groups in found.by_segment().items()
    }
    return kept | {"segments": segments, "beyond": found.beyond, "values": packed(found)}


def _rolled(
    model: Model, cut: Split, cell: Cell, units: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Window by window along the time line: all windows together as one test, and each of them."""
    assert cell.rolling is not None
    asked, clock = cell.rolling, cut.log.clock
    window, refresh = asked.window, asked.refresh
    if clock.ticks is None:  # an order has no days: as many windows, and as many refreshes
        length = max(1, (int(cut.log.time.max()) + 1 - cut.valid_end) // asked.windows)
        window, refresh = str(length), {"never": "never", "1d": str(length)}.get(refresh, str(7 * length))
    sample = min(PER_WINDOW, cell.sample)
    found = rolling(model, cut, window, refresh, "full", "ordinary", sample, windows=asked.windows)
    parts = [one.evaluation for one in found.windows if one.evaluation is not None]
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
    curve = [
        {"start": clock.date(one.start), "trained_until": clock.date(one.trained_until), METRIC: value}
        for one, value in zip(found.windows, found.curve(), strict=True)
    ]
    return {"ordinary, full": _one(whole, units)}, curve


def _at_strengths(tests: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The metric of each test at each position of the debiasing strength; nothing for models without one."""
    return {name: strengths for name, found in tests.items() if (strengths := found.pop("strengths", {}))}


def _records(model: Model) -> list[dict[str, Any]]:
    """Of each epoch: the losses, and the metric of each validation metric."""
    return [
        {
            "epoch": record.epoch,
            "stage": record.stage,
            "losses": record.losses,
            "valid": {name: found[METRIC] for name, found in record.valid.items()},
        }
        for record in model.records
    ]


def _health(model: Model, cut: Split) -> dict[str, Any] | None:
    """What the propensities of a model do to its loss; None for models without any."""
    seen = training_weights(model, cut)
    if seen is None:
        return None
    verdict = {"clip": seen.clip, "kind": seen.finding.kind, "verdict": seen.finding.sentence}
    if seen.exposure:
        return verdict
    weight = seen.weight
    spread = np.quantile(weight / weight.mean(), [0.01, 0.25, 0.5, 0.75, 0.99]).tolist()
    found = {"effective_fraction": effective_size(weight) / len(weight)}
    found |= {"clipped": seen.clipped, "spread": spread}
    return verdict | found


def _said(cell: Cell) -> dict[str, Any]:
    return {
        "config": dict(cell.config),
        "training": dict(cell.training),
        "sample": cell.sample,
        "rolling": cell.rolling and asdict(cell.rolling),
    }


def _described(cell: Cell, cut: Split) -> dict[str, Any]:
    log = cut.log
    dates = [str(log.clock.date(time)) for time in (cut.train_end, cut.valid_end)]
    sizes = {"rows": len(log), "positives": log.positives, "users": len(log.users), "items": len(log.items)}
    return {
        "name": cell.source.name,
        "hash": log.fingerprint(),
        "world": cell.source.world and asdict(cell.source.world),
        "splitting": asdict(cell.splitting),
        "train_before": dates[0],
        "test_from": dates[1],
        "dated": log.clock.ticks is not None,
        "repeats": cut.repeats,
        **sizes,
    }


def _versions() -> dict[str, str]:
    own = {"unskew": version("unskew"), "python": platform.python_version()}
    return own | {"torch": torch.__version__, "numpy": np.__version__}


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:16]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value
