"""The figures that the paper published, to stand beside ours where the protocol is the same.

Xu et al., Dually Enhanced Propensity Score Estimation in Sequential Recommendation, CIKM 2022: Table EXP:main
for the four data sets, and for Amazon-Digital-Music the Tables ablation_trans, Ablation and model-agnostic.
As printed: HR@20 of DEPS on Amazon-Digital-Music is 0.7757 in the first table and 0.7747 in the others, and
NDCG@20 of Item-Pro is below its NDCG@10, which cannot be.

Ours may stand beside them only for the paper's own rows: a named test of one of its data sets under the
protocol `authors`. Even then it is no reproduction (`CAVEAT`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from unskew.evaluation.metrics import written
from unskew.experiments.intervals import Measured
from unskew.experiments.results import EvaluationSpec, SuiteFindings
from unskew.experiments.table import NONE, Entry, Sheet

METRICS = ("ndcg@5", "ndcg@10", "ndcg@20", "hr@5", "hr@10", "hr@20")
CAVEAT = (
    "About a third of the paper's training rows could not be had, so this is no reproduction: the test rows "
    "and the protocol are the paper's, but what the models learned from is less."
)
# What the name of a data set of the paper has in it, besides "paper".
WORDS = {"beauty": "Amazon-Beauty", "music": "Amazon-Digital-Music", "mind": "MIND"}

# By data set and model, in the order of METRICS. The names are those of the arms of our suites.
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "MIND": {
        "STAMP": (0.0471, 0.0669, 0.0997, 0.0861, 0.1519, 0.2863),
        "DIN": (0.1149, 0.1548, 0.1948, 0.2090, 0.3379, 0.5019),
        "BERT4Rec": (0.0900, 0.1277, 0.1817, 0.1671, 0.2922, 0.5145),
        "FPMC": (0.0670, 0.1006, 0.1400, 0.1229, 0.2359, 0.3999),
        "GRU4Rec+": (0.0865, 0.1306, 0.1819, 0.1504, 0.2918, 0.5052),
        "BST": (0.0865, 0.1233, 0.1753, 0.1607, 0.2825, 0.4948),
        "LightSANs": (0.1148, 0.1650, 0.2159, 0.2024, 0.3692, 0.5760),
        "UIR": (0.0594, 0.0823, 0.1233, 0.1141, 0.1909, 0.3577),
        "CPR": (0.0582, 0.0847, 0.1204, 0.1037, 0.1898, 0.3379),
        "UBPR": (0.0588, 0.0863, 0.1237, 0.1048, 0.1942, 0.3511),
        "DICE": (0.0612, 0.0861, 0.1235, 0.1201, 0.2030, 0.3571),
        "USR": (0.0658, 0.0955, 0.1339, 0.1207, 0.2194, 0.3807),
        "DEPS": (0.1197, 0.1728, 0.2249, 0.2200, 0.3961, 0.6078),
    },
    "Amazon-Beauty": {
        "STAMP": (0.0985, 0.1330, 0.1780, 0.1945, 0.3349, 0.5364),
        "DIN": (0.1139, 0.1407, 0.1699, 0.2160, 0.3174, 0.4434),
        "BERT4Rec": (0.1008, 0.1333, 0.1722, 0.1964, 0.3166, 0.4864),
        "FPMC": (0.1225, 0.1563, 0.1962, 0.2292, 0.3530, 0.5233),
        "GRU4Rec+": (0.1050, 0.1438, 0.1919, 0.2132, 0.3555, 0.5656),
        "BST": (0.1156, 0.1548, 0.1983, 0.2134, 0.3679, 0.5524),
        "LightSANs": (0.1312, 0.1661, 0.2078, 0.2430, 0.3696, 0.5424),
        "UIR": (0.1188, 0.1603, 0.2109, 0.2338, 0.3836, 0.5980),
        "CPR": (0.1172, 0.1465, 0.1823, 0.2119, 0.3176, 0.4756),
        "UBPR": (0.0918, 0.1214, 0.1580, 0.1780, 0.2879, 0.4465),
        "DICE": (0.1238, 0.1645, 0.2127, 0.2365, 0.3834, 0.5890),
        "USR": (0.1046, 0.1429, 0.1903, 0.2064, 0.3435, 0.5470),
        "DEPS": (0.1362, 0.1830, 0.2302, 0.2557, 0.4175, 0.6130),
    },
    "Amazon-Digital-Music": {
        "STAMP": (0.0727, 0.0961, 0.1305, 0.1373, 0.2437, 0.4034),
        "DIN": (0.1220, 0.1513, 0.1890, 0.2745, 0.3950, 0.5518),
        "BERT4Rec": (0.1419, 0.1771, 0.2231, 0.2606, 0.4249, 0.5949),
        "FPMC": (0.1355, 0.1799, 0.2153, 0.2941, 0.4391, 0.6091),
        "GRU4Rec+": (0.0651, 0.0961, 0.1385, 0.1709, 0.3025, 0.4874),
        "BST": (0.1556, 0.1976, 0.2454, 0.3249, 0.4902, 0.6779),
        "LightSANs": (0.1940, 0.2192, 0.2586, 0.3613, 0.4737, 0.6162),
        "UIR": (0.0691, 0.0912, 0.1317, 0.1541, 0.2437, 0.4314),
        "CPR": (0.1664, 0.2121, 0.2558, 0.3473, 0.5014, 0.6415),
        "UBPR": (0.1353, 0.1643, 0.2060, 0.2521, 0.3754, 0.5546),
        "DICE": (0.1170, 0.1432, 0.1789, 0.2185, 0.3361, 0.4902),
        "USR": (0.0921, 0.1222, 0.1643, 0.2017, 0.3305, 0.5098),
        "DEPS": (0.2256, 0.2766, 0.3273, 0.4093, 0.5852, 0.7757),
    },
    "Huawei": {
        "STAMP": (0.0919, 0.1024, 0.1202, 0.3569, 0.5540, 0.7404),
        "DIN": (0.1081, 0.1195, 0.1421, 0.3874, 0.6138, 0.8011),
        "BERT4Rec": (0.1247, 0.1352, 0.1561, 0.4192, 0.6242, 0.8090),
        "FPMC": (0.1079, 0.1193, 0.1416, 0.3954, 0.6174, 0.8188),
        "GRU4Rec+": (0.1090, 0.1163, 0.1357, 0.3941, 0.5833, 0.7890),
        "BST": (0.1016, 0.1125, 0.1344, 0.3594, 0.5625, 0.7785),
        "LightSANs": (0.1335, 0.1323, 0.1454, 0.4576, 0.6315, 0.7889),
        "UIR": (0.0554, 0.0634, 0.0793, 0.2129, 0.3569, 0.5625),
        "CPR": (0.1414, 0.1489, 0.1711, 0.4726, 0.6730, 0.8603),
        "UBPR": (0.1033, 0.1192, 0.1409, 0.3880, 0.6132, 0.8115),
        "DICE": (0.0670, 0.0767, 0.0926, 0.2453, 0.4155, 0.6107),
        "USR": (0.0922, 0.1042, 0.1234, 0.3435, 0.5552, 0.7529),
        "DEPS": (0.1400, 0.1503, 0.1755, 0.4765, 0.6852, 0.8713),
    },
}
PUBLISHED["Amazon-Digital-Music"] |= {
    "without history": (0.2161, 0.2720, 0.3192, 0.3599, 0.5467, 0.7115),
    "without audience": (0.2034, 0.2541, 0.3035, 0.3819, 0.5383, 0.7253),
    "without stage 1": (0.1953, 0.2423, 0.2869, 0.3489, 0.5082, 0.6869),
    "Item-Pro": (0.1984, 0.2385, 0.1928, 0.3819, 0.5220, 0.7170),
    "User-Pro": (0.2044, 0.2494, 0.2983, 0.3681, 0.5275, 0.7088),
    "Item-User-Pro": (0.2133, 0.2665, 0.3156, 0.3736, 0.5495, 0.7273),
    "DEPS (GRU4Rec+)": (0.0861, 0.1219, 0.1608, 0.1905, 0.3272, 0.5182),
    "DEPS (FPMC)": (0.1396, 0.1858, 0.2189, 0.3025, 0.4566, 0.6426),
}


class Beside(NamedTuple):
    """A published table that ours may stand beside."""

    source: str  # what the bench calls the data set
    data: str  # what the paper calls it
    by: EvaluationSpec
    found: Measured


def data_set(source: str) -> str | None:
    """The data set of the paper that a data set of a bench is, by its name; None for any other."""
    name = source.lower()
    if "paper" not in name:
        return None
    return next((data for word, data in WORDS.items() if word in name), None)


def beside(suite: SuiteFindings) -> Iterator[Beside]:
    """The data sets and tests of a suite whose rows and protocol are the paper's."""
    for source in suite.sources:
        data = data_set(source)
        for by in suite.evaluation_specs:
            found = suite.measured(source, by) if data is not None and by.protocol == "authors" else None
            if data is not None and found is not None:
                yield Beside(source, data, by, found)


def published_sheets(suite: SuiteFindings) -> Iterator[Sheet]:
    """For each data set of the paper: its published figures and ours, model by model."""
    for source, data, by, found in beside(suite):
        known = PUBLISHED[data]
        rows = []
        for arm in suite.arms:
            if arm.name not in known or arm.name not in found.seeds:
                continue
            row = [Entry(arm.name)]
            for metric, printed in zip(METRICS, known[arm.name], strict=True):
                ours = found.figures(metric).get(arm.name) if metric in found.metrics else None
                small = "" if ours is None else f"[{ours.low:.4f}, {ours.high:.4f}]"
                row += [Entry(f"{printed:.4f}"), Entry(NONE if ours is None else f"{ours.mean:.4f}", small)]
            rows.append(row)
        if rows:
            head = ("model", *(name for _ in METRICS for name in ("paper", "ours")))
            over = [("", 1), *((written(metric), 2) for metric in METRICS)]
            said = (
                f"{source}: the paper's {data} beside ours, test {by.test}, the authors' protocol. {CAVEAT}"
            )
            yield Sheet(head, rows, said, over=over)
