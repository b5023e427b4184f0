"""The tables and figures of the paper, each as a suite: Xu et al., Dually Enhanced Propensity Score
Estimation in Sequential Recommendation, CIKM 2022."""

from unskew.experiments.suite import Arm, Suite

RIVALS = (
    Arm(name="STAMP", model="stamp"),
    Arm(name="DIN", model="din"),
    Arm(name="BERT4Rec", model="bert4rec"),
    Arm(name="FPMC", model="fpmc"),
    Arm(name="GRU4Rec+", model="gru4rec"),
    # It reads the candidate with the history, so every pair that is ranked costs a pass of the network.
    Arm(name="BST", model="bst", settings={"valid_examples": 300}),
    Arm(name="LightSANs", model="lightsans"),
    Arm(name="UIR", model="uir"),
    Arm(name="CPR", model="cpr"),
    Arm(name="UBPR", model="ubpr"),
    Arm(name="DICE", model="dice"),
    Arm(name="USR", model="usr"),
)
DEPS = Arm(name="DEPS", model="deps")
DEPS_AUTO = Arm(name="DEPS, auto", model="deps", preset="auto")
# What the paper does not have, and no table should be without.
BEYOND = (
    DEPS_AUTO,
    Arm(name="popularity, total", model="popularity", settings={"recency": "total"}),
    Arm(name="popularity", model="popularity"),
    Arm(name="ItemKNN", model="itemknn"),
    Arm(name="SASRec", model="sasrec"),
    Arm(name="debiased SASRec", model="debiased-sasrec"),
    Arm(name="pulse-zero", model="pulse-zero"),
    Arm(name="pulse", model="pulse"),
)
CLIPS = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

MAIN = Suite(
    name="main",
    title="DEPS and its rivals",
    question="Is DEPS better than the twelve models that the paper compares it with, than popularity, and "
    "than the default model of this package?",
    of="Table EXP:main",
    arms=(DEPS, *RIVALS, *BEYOND),
    rivals=tuple(arm.name for arm in RIVALS),
)

VIEWS = Suite(
    name="views",
    title="Two views of the propensity",
    question="Do propensities help, from either view, and do both views together help more?",
    of="Figure ablation_ips",
    arms=(
        DEPS,
        Arm(name="without IPS", model="deps", preset="without-ips"),
        Arm(name="without the user view", model="deps", preset="item-view"),
        Arm(name="without the item view", model="deps", preset="user-view"),
    ),
)

PARTS = Suite(
    name="parts",
    title="The parts of DEPS",
    question="What do the user's history, the item's audience and the unsupervised first stage contribute?",
    of="Table ablation_trans",
    arms=(
        DEPS,
        Arm(name="without history", model="deps", preset="without-history"),
        Arm(name="without audience", model="deps", preset="without-audience"),
        Arm(name="without stage 1", model="deps", preset="without-stage-1"),
    ),
)

FREQUENCY = Suite(
    name="frequency",
    title="Sequential propensities and frequencies",
    question="Are propensities that two GRUs estimate better than the frequencies of items and users?",
    of="Table Ablation",
    arms=(
        DEPS,
        Arm(name="Item-Pro", model="deps", preset="item-pro"),
        Arm(name="User-Pro", model="deps", preset="user-pro"),
        Arm(name="Item-User-Pro", model="deps", preset="item-user-pro"),
    ),
)

AGNOSTIC = Suite(
    name="agnostic",
    title="Propensities for other models",
    question="Do the propensities of DEPS lift other models, with the weights of the paper and with the "
    "correction that works by the ground truth?",
    of="Table model-agnostic",
    arms=tuple(
        arm
        for name, model in (
            ("GRU4Rec+", "gru4rec"),
            ("FPMC", "fpmc"),
            ("SASRec", "sasrec"),
            ("STAMP", "stamp"),
        )
        for arm in (
            Arm(name=name, model=model),
            Arm(name=f"DEPS ({name})", model=f"debiased-{model}", preset="paper", twin=name),
            Arm(name=f"debiased {name}", model=f"debiased-{model}", twin=name),
        )
    ),
)

CLIP = Suite(
    name="clip",
    title="The clip M",
    question="Which lower bound of the propensities is best?",
    of="Figure M-adjust",
    axis="clip M",
    arms=tuple(
        Arm(name=f"M {clip:g}", model="deps", settings={"clip": clip}, x=clip)
        for clip in sorted(CLIPS, key=lambda clip: clip != 0.05)  # what the others are compared with first
    ),
)

SUITES = (MAIN, VIEWS, PARTS, FREQUENCY, AGNOSTIC, CLIP)
