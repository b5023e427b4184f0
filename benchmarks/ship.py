"""A suite of the models that one would choose from for a log of one's own, on logs with real times: DEPS and
a few of its rivals instead of all twelve, so that several seeds can be afforded.

    unskew bench --suite benchmarks/ship.py DATA --out results/bench
"""

from unskew.experiments.paper_suites import BEYOND, DEPS, RIVALS
from unskew.experiments.suite import Arm, Suite

PULSE = Arm(name="pulse", model="pulse")

ship = Suite(
    name="ship",
    title="Which model would one ship?",
    question="Which of the models would one choose for films, a shop, cosmetics, songs or news?",
    arms=(
        PULSE,
        *(arm for arm in BEYOND if arm != PULSE),
        *(arm for arm in RIVALS if arm.name in ("GRU4Rec+", "LightSANs")),
        DEPS,
    ),
)
