"""DEPS and its rivals with the settings that `unskew tune` found for each, from results/tuned.

    for m in deps stamp din bert4rec fpmc gru4rec bst lightsans uir cpr ubpr dice usr; do
        unskew tune $m DATA --out results/tuned/$m.json --trials 5 --threads 1
    done
    unskew bench --suite benchmarks/tuned.py DATA --out results/bench

Every model has had five trials, the first with its own settings. Where an epoch takes long, trials were made
smaller; `command` in each file says how. Only what was searched is taken over, so the models of the table are
not smaller for that.
"""

import json
from pathlib import Path
from typing import Any

from unskew.experiments.paper_suites import DEPS, RIVALS
from unskew.experiments.suite import Arm, Suite

FOUND = Path(__file__).parents[1] / "results" / "tuned"


def settings_of(model: str) -> dict[str, Any]:
    """What was found for a model, of what was searched."""
    found = json.loads((FOUND / f"{model}.json").read_text(encoding="utf-8"))
    return {name: value for name, value in found["settings"].items() if name in found["searched"]}


tuned = Suite(
    name="tuned",
    title="DEPS and its rivals, each tuned",
    question="Is DEPS better than its rivals, if each has had as many trials of `unskew tune`?",
    of="Table EXP:main",
    arms=[
        Arm(name=arm.name, model=arm.model, settings={**arm.settings, **settings_of(arm.model)})
        for arm in (DEPS, *RIVALS)
    ],
    rivals=[arm.name for arm in RIVALS],
    seeds=1,
)
