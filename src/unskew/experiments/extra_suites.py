"""Suites that the paper does not have: worlds whose ground truth is known, a stand-in for its private log,
and the time line along which a model grows old."""

from dataclasses import replace
from typing import Any

from unskew.experiments import paper_suites as paper
from unskew.experiments.suite import Arm, Rolling, Suite
from unskew.world.equations import Simulation
from unskew.world.kinds import kind_named

# With so many clicks of each user (about 55) networks learn who likes what; with a third they hardly do.
KNOWN: dict[str, Any] = {"users": 1000, "items": 100, "shown": 8.0, "steps": 300, "drift": 0.3}
SASREC = {"sequences": 32, "epochs": 12, "patience": 6, "dropout": 0.2}
SMALL_DEPS = {
    "reads": "history",
    "audience": 30,
    "width": 32,
    "layers": 1,
    "inner": 64,
    "dropout": 0.0,
    "hidden_ids": 0.0,
}
SMALL_DEPS |= {
    "unsupervised_epochs": 1,
    "batch_size": 512,
    "learning_rate": 5e-3,
    "epochs": 10,
    "patience": 5,
}

GROUND_TRUTH = Suite(
    name="ground-truth",
    title="The simulated world",
    question="Which model comes nearest to what users truly like, the more exposure is biased?",
    worlds={
        f"bias {strength}": replace(kind_named(f"bias-{strength}"), **KNOWN, seed=100)
        for strength in (0, 1, 2)
    },
    arms=(
        Arm(name="SASRec", model="sasrec", settings=SASREC),
        Arm(name="debiased SASRec", model="debiased-sasrec", settings=SASREC),
        Arm(name="DEPS (SASRec)", model="debiased-sasrec", preset="paper", settings=SASREC),
        Arm(name="DEPS without IPS", model="deps", settings=SMALL_DEPS | {"propensity": "none"}),
        Arm(name="DEPS", model="deps", settings=SMALL_DEPS, twin="DEPS without IPS"),
        Arm(
            name="DEPS, auto",
            model="deps",
            settings=SMALL_DEPS,
            preset="auto",
            twin="DEPS without IPS",
        ),
        Arm(name="popularity", model="popularity"),
        Arm(name="pulse", model="pulse"),
    ),
)

# About as many users, items and interactions as the private log of Huawei in the paper (2,000, 17,490 and
# 245,564). Its interactions may be clicks or impressions, which the paper does not say; here they are both.
INDUSTRY = Suite(
    name="industry",
    title="A stand-in for the paper's private log",
    question="How do the models compare on a simulated log of the size of Huawei's?",
    of="Table EXP:main, Huawei",
    worlds={
        "industry": Simulation(users=2000, items=17490, steps=122, impressions=0.1, shown=10.0, seed=200)
    },
    arms=paper.MAIN.arms,
    rivals=paper.MAIN.rivals,
    seeds=1,
)

ROLLING = Suite(
    name="rolling",
    title="Growing old",
    question="How much is lost if a model is not trained again, and does popularity that is always up to "
    "date do as well?",
    arms=tuple(
        Arm(name=f"{name}, {words}", model=model, rolling=Rolling(refresh=refresh))
        for name, model, often in (
            ("popularity", "popularity", ("never",)),
            ("pulse", "pulse", ("never", "1w", "1d")),
            ("GRU4Rec+", "gru4rec", ("never", "1w", "1d")),
        )
        for refresh, words in (("never", "never refreshed"), ("1w", "weekly"), ("1d", "daily"))
        if refresh in often
    ),
    seeds=1,
)

SUITES = (GROUND_TRUTH, INDUSTRY, ROLLING)
