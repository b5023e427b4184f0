"""A suite for logs on which every rival of the paper would take hours: the models one would choose from, with
smaller audiences and fewer rounds where these cost most.

    unskew bench --suite benchmarks/large.py DATA --out results/bench
"""

from typing import Any

from unskew.suites.paper import BEYOND, DEPS, WORKING
from unskew.suites.recipe import Arm, Suite

SMALLER: dict[str, Any] = {"audience": 30, "rounds": 3, "unsupervised_rounds": 2, "batch_size": 2048}

large = Suite(
    name="large",
    title="Larger logs",
    question="Which of the models would one choose for a shop or for news?",
    arms=(
        Arm(name="pulse", model="pulse"),
        *(arm for arm in BEYOND if arm.name not in ("pulse", WORKING.name)),
        Arm(name="GRU4Rec+", model="gru4rec"),
        Arm(name="LightSANs", model="lightsans", settings={"rounds": 5}),
        Arm(name=DEPS.name, model="deps", settings=SMALLER),
        Arm(name=WORKING.name, model="deps", preset="working", settings=SMALLER),
    ),
    seeds=1,
)
