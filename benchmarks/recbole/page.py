"""Write docs/recbole.md from the stored runs of benchmarks/recbole/run.py.

python benchmarks/recbole/page.py
"""

from typing import Any

import numpy as np
from run import BATCH, EPOCHS, MODELS, PATIENCE, ROOT, USUAL_EPOCHS, USUAL_VALID_ROWS, VALID_ROWS, records

PAGE, SHARES = ROOT / "docs" / "recbole.md", "80-10-10"

# Rows per CPU-second of RecBole, measured before on this kind of machine: what ours are held against, beside
# the fresh figure.
BEFORE = {
    "GRU4Rec": 770,
    "BERT4Rec": 236,
    "SASRec": 276,
    "LightSANs": 300,
    "STAMP": 3413,
    "FPMC": 48937,
    "DIN": 900,
}


def main() -> None:
    runs = records("run", SHARES)
    parts = [
        HEAD.format(
            batch=BATCH,
            patience=PATIENCE,
            epochs=limits(EPOCHS, USUAL_EPOCHS),
            valid=limits(VALID_ROWS, USUAL_VALID_ROWS),
        )
    ]
    if runs:
        one = runs[0]
        counts = (
            f"{one['rows']:,} training rows; {one['units']:,} test positives, {one['known_units']:,} "
            "of them known"
        )
        parts += [f"## Accuracy, ml-100k, split {SHARES.replace('-', ' / ')}\n\n{counts}.\n", accuracy(runs)]
    parts += ["## Training throughput\n", throughput(records("throughput", SHARES))]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


HEAD = """# Comparison with RecBole

This page compares our implementations of models with those of RecBole 1.2.1, in accuracy and in speed of
training. `benchmarks/recbole/setup.sh` installs RecBole in an environment of its own. Then
`python benchmarks/recbole/run.py run` writes `results/recbole.jsonl`, and
`python benchmarks/recbole/page.py` writes this page. RecBole's trainer and models learn from our prepared
split, with one row per training positive that has a past (the newest 50 items strictly before). Both sides
have the same small amount of tuning: width 64, Adam at 1e-3, and batches of {batch} rows (or of whole
histories with about as many). All other settings are each side's own defaults. Training has at most
{epochs} epochs and stops after {patience} epochs without a better NDCG@10 of {valid} validation positives.

**The accuracy was measured before [the evaluation protocol](evaluation-protocol.md) was corrected.** The
throughput does not depend on it. The accuracy below was ranked by the same code for both sides, on a log
without repeats. Our models, however, were trained with events of equal times read as past. The accuracy is to
be measured again, and says nothing about other tests.

Every figure is the mean over seeds (± the standard deviation between seeds). The protocol is `full`: each
test positive is ranked among all items that existed before, without the user's own past ones, by the same
code for both sides. *known* are test positives whose user and item are in the training set; after a split
in global time most test users are new. For ids that are not in the training set, RecBole has vectors that
were at most pushed down as negatives (and for FPMC, user vectors that were never trained); our models read
one learned or average vector. RecBole cannot read an empty history, so it gets one padding item there.
*capped* is the number of seeds that the limit of epochs stopped.
"""


WHY = """The table shows rows per CPU-second of whole training epochs, with one thread and batches of 2048
rows. A row is one prefix with its next item, and for BERT4Rec a sequence that is passed through the network.
The machine is shared: single figures vary by a fifth or more.

The differences have these causes. GRU4Rec, SASRec and STAMP read a history once and have a state after each
of its items, where RecBole reads every prefix separately. Then the softmax over all items takes most of the
time; it is computed in chunks that stay in the cache and compute their gradient at once. The attention of
STAMP is triangular, with one sigmoid per pair of items in any implementation. FPMC computes almost nothing:
it looks vectors up and adds gradients to them, and RecBole does that well. BERT4Rec and LightSANs must pass
through each sequence separately; time is saved by not padding to 50, and by computing the last layer only
at the positions that are read. The activation unit of DIN runs for every pair of a past item and a
candidate; its first layer is split, so that only the product of the two is computed per pair.
"""


def limits(special: dict[str, int], usual: int) -> str:
    exceptions = ", ".join(f"{model}: {number:,}" for model, number in special.items())
    return f"{usual:,} ({exceptions})"


def spread(values: list[float], form: str = ".4f") -> str:
    return f"{np.mean(values):{form}}" + (f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else "")


def of(runs: list[dict[str, Any]], model: str, side: str) -> list[dict[str, Any]]:
    return [run for run in runs if (run["model"], run["side"]) == (model, side)]


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---", "---", *["---:"] * (len(head) - 2)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def accuracy(runs: list[dict[str, Any]]) -> str:
    metrics = ("ndcg@10", "hr@10", "known_ndcg@10", "known_hr@10")
    lines = []
    for model in MODELS:
        for side in ("recbole", "ours"):
            found = of(runs, model, side)
            if found:
                cells = [spread([run[metric] for run in found]) for metric in metrics]
                effort = [
                    spread([run[name] for run in found], ".0f")
                    for name in ("best_epoch", "epochs_run", "cpu_s")
                ]
                lines.append(
                    [model, side, *cells, *effort, str(sum(run["capped"] for run in found)), str(len(found))]
                )
    return table(
        [
            "model",
            "side",
            *(metric.replace("_", " ") for metric in metrics),
            "best epoch",
            "epochs",
            "CPU-s",
            "capped",
            "seeds",
        ],
        lines,
    )


def throughput(lines: list[dict[str, Any]]) -> str:
    rows = []
    for model in MODELS:
        theirs, mine = (
            [line["rows_per_cpu_s"] for line in of(lines, model, side)] for side in ("recbole", "ours")
        )
        ratio = f"{np.mean(mine) / np.mean(theirs):.1f}" if mine and theirs else "–"
        rows.append(
            [
                model,
                f"{BEFORE[model]:,}",
                *(spread(values, ",.0f") if values else "–" for values in (theirs, mine)),
                ratio,
            ]
        )
    return WHY + "\n" + table(["model", "RecBole, measured before", "RecBole, here", "ours", "ratio"], rows)


if __name__ == "__main__":
    main()
