"""A suite of the models that one would choose from for a log of one's own, on logs with real times: a few of
the rivals of the paper instead of all, and DEPS with shorter audiences and fewer rounds, so that large logs
and several seeds can be afforded.

    unskew bench --suite benchmarks/ship.py DATA --out results/bench
"""

from typing import Any

from unskew.suites.paper import BEYOND, WORKING
from unskew.suites.recipe import Arm, Suite

SMALLER: dict[str, Any] = {"audience": 30, "rounds": 3, "unsupervised_rounds": 2, "batch_size": 2048}

ship = Suite(
    name="ship",
    title="Which model would one ship?",
    question="Which of the models would one choose for films, a shop, songs or news?",
    arms=(
        Arm(name="pulse", model="pulse"),
        *(arm for arm in BEYOND if arm.name not in ("pulse", WORKING.name)),
        Arm(name="GRU4Rec+", model="gru4rec"),
        Arm(name="LightSANs", model="lightsans", settings={"rounds": 5}),
        Arm(name="DEPS, smaller", model="deps", settings=SMALLER),
        Arm(name="DEPS, working treatment, smaller", model="deps", preset="working", settings=SMALLER),
    ),
)
