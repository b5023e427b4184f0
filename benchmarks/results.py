"""Models on real data under the yardstick: every test, with segments, stored run by run, and written as
docs/results.md.

    python benchmarks/results.py run [--sets NAME ...] [--models NAME ...] [--seeds 0 1 2]
    python benchmarks/results.py page

Each finished run is a line of results/runs.jsonl; a run that is there already is not done again, so the
command can be stopped and started at will. Validation chooses everything; the test part is only ever ranked
at the end.
"""

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import tyro

import unskew
from unskew.data.held_out import available_tests
from unskew.report.table import Table
from unskew.significance import interval

ROOT = Path(__file__).parents[1]
DATA, RESULTS, PAGE, README = (
    ROOT.parent / "shared" / "data",
    ROOT / "results" / "runs.jsonl",
    ROOT / "docs" / "results.md",
    ROOT / "README.md",
)
SAMPLE = 5000  # test positives, the same for every model; their weights come from the whole test
METRIC = "ndcg@10"

# No filter, nothing removed: a k-core over the whole log looks ahead.
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "MovieTweetings": ("movietweetings_100k/ratings.csv.gz", {"positive": 7}),
    "Online Retail": ("online_retail", {}),
    "Beauty": ("amazon_beauty_5core", {}),  # its publishers filtered it
    "Digital Music 2018": ("amazon_digital_music_2018", {}),
    "MIND (sample)": ("mind_small_sample", {}),
}
# Every model has its defaults; what differs is said below each table.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity, total": ("popularity", {"recency": "total"}),
    "popularity, recency by validation": ("popularity", {}),
    "ItemKNN": ("itemknn", {}),
    "SASRec": ("sasrec", {}),
    "GRU4Rec+": ("gru4rec", {}),
    "LightSANs": ("lightsans", {}),
    "debiased SASRec": ("debiased-sasrec", {}),
    "DEPS": ("deps", {}),
    "DEPS, working treatment": ("deps", {"how": "auto", "propensity": "auto"}),
    "pulse-zero (not trained)": ("pulse-zero", {}),
    "pulse": ("pulse", {}),
}

SHOWN = ("ordinary", "balanced")
IN_SHORT = {  # the columns of the summary in the README
    "popularity, recency by validation": "popularity",
    "ItemKNN": "ItemKNN",
    "SASRec": "SASRec",
    "DEPS": "DEPS",
    "pulse-zero (not trained)": "pulse-zero",
    "pulse": "**pulse**",
}
SEGMENTS = [
    ("user", "known"),
    ("user", "new"),
    ("item", "known"),
    ("item", "new"),
    ("user and item", "both known"),
]
SEGMENTS += [("history length", group) for group in ("0", "1-4", "5-19", "20+")]
SEGMENTS += [("popularity decile", group) for group in ("1", "2", "5", "8")]
# Audiences of 500 would cost hours on Online Retail, whose items have thousands of buyers.
SMALLER = {
    ("Online Retail", "DEPS"): {"audience": 30, "rounds": 3, "unsupervised_rounds": 2, "batch_size": 2048},
    ("Online Retail", "LightSANs"): {"rounds": 5},  # it reads every prefix anew
    ("Online Retail", "DEPS, working treatment"): {
        "audience": 30,
        "rounds": 3,
        "unsupervised_rounds": 2,
        "batch_size": 2048,
    },
}

BEGIN, END = "<!-- made by benchmarks/results.py -->", "<!-- end -->"
HEAD = """
# Results

Made by `python benchmarks/results.py run` and `python benchmarks/results.py page` from
[results/runs.jsonl](../results/runs.jsonl), under [our yardstick](yardstick.md). Everything was chosen on the
validation part, Pulse's dial as well; each test is evaluated with the weights (and the dial) that its own
version of the validation part chose. The test part chose nothing. `pulse-zero` learned nothing from the log
at hand; but it learned its weights on MovieTweetings and Online Retail, so on these two it is no stranger.
"""
TAIL = """
## What this says

- **Ordinary clicks are the hits of the day.** Popularity with the recency that validation chose finds them;
  networks that know only ids cannot. Pulse reads how fast audiences grow, and what people alike took.
- **Where every item counts once** (`balanced`), popularity is last, and what knows items is ahead. Pulse's
  dial takes out what anybody would click, and leaves what this person would rather than others.
- DEPS finds what is popular now, and has little to say where every item counts once. Its own weights do
  nothing at the paper's clip (`unskew propensity health RUN`); `--preset working` has a treatment that
  debiases SASRec [by the truth](truth.md), but `debiased SASRec` is no better than SASRec here.
- **MIND flatters Pulse.** Its histories have no times and are put just before the first impression, so
  whatever is older than the log looks equally old, and what is new is told by its age at once. On the few
  test clicks on known items Pulse finds nothing. Where only the shown items compete, its lead is small.
- Defaults are the papers' values, with fewer rounds for SASRec and GRU4Rec+. Intervals cover users only;
  with one seed nothing is called significant. Beauty is the published 5-core: that an item returns there is
  certain from the start, which helps what counts audiences.
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet."""

    sets: tuple[str, ...] = tuple(SETS)
    models: tuple[str, ...] = tuple(MODELS)
    seeds: tuple[int, ...] = (0,)
    data: Path = DATA
    threads: int = 1

    def __call__(self) -> None:
        torch.set_num_threads(self.threads)
        for name in self.sets:
            path, settings = SETS[name]
            wanted = [
                (model, seed)
                for seed, model in product(self.seeds, self.models)
                if not _stored(name, model, seed)
            ]
            if not wanted:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                split = unskew.split(unskew.prepare(self.data / path, Path(scratch) / "data", **settings))
                for model, seed in wanted:
                    found = measured(split, name, model, seed)
                    with RESULTS.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"set": name, "model": model, "seed": seed, **found}) + "\n")
                    print(
                        name,
                        model,
                        seed,
                        {test: round(part["metrics"][METRIC], 4) for test, part in found["tests"].items()},
                        flush=True,
                    )


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    return Table(head, rows).markdown()


def measured(split: unskew.Split, data: str, name: str, seed: int) -> dict[str, Any]:
    kind, settings = MODELS[name]
    settings = settings | SMALLER.get((data, name), {})
    started = time.process_time()
    model = unskew.create_model(kind, settings | {"seed": seed}).fit(split)
    trained = time.process_time() - started
    tests = {}
    for test in available_tests(split):
        if test == "authors":  # the paper's own resampling: a yardstick of its own
            continue
        found = model.evaluate(split, test=test, sample=SAMPLE)
        segments = {
            segment: {
                group: {key: part[key] for key in ("units", "share", METRIC) if key in part}
                for group, part in groups.items()
            }
            for segment, groups in found.by_segment().items()
        }
        tests[test] = {
            "units": len(found.user),
            "effective_sample_size": found.effective_sample_size,
            "left_out": found.about["left_out"],
            "chosen_by": found.about["weights_chosen_by"],
            "dial": found.about["dial"],
            "metrics": found.metrics(),
            "interval": interval(found, METRIC),
            "segments": segments,
            "beyond": found.beyond,
        }
    rounds = len([record for record in model.records if "valid" in record])
    about = {
        "settings": {"model": kind, **settings},
        "repeats": split.repeats,
        "rounds": rounds,
        "cpu_s": round(trained),
    }
    rounded: dict[str, Any] = _rounded({**about, "shares": list(split.settings.shares), "tests": tests})
    return rounded


# The page


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write docs/results.md and the summary in the README from the stored runs."""

    def __call__(self) -> None:
        lines = _lines()
        sets = [name for name in SETS if any(line["set"] == name for line in lines)]
        parts = [part_of(name, [line for line in lines if line["set"] == name]) for name in sets]
        PAGE.write_text("\n\n".join([HEAD.strip(), *parts, TAIL.strip()]) + "\n", encoding="utf-8")
        text = README.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        README.write_text(f"{before}\n\n{summary(lines, sets)}\n\n{after}", encoding="utf-8")


def part_of(name: str, lines: list[dict[str, Any]]) -> str:
    models = _models(lines)
    first = lines[0]
    tests = [test for test in first["tests"] if all(test in line["tests"] for line in lines)]
    left = ", ".join(
        f"{count:,} {why.replace('_', ' ')}"
        for why, count in first["tests"]["ordinary"]["left_out"].items()
        if count
    )
    units = first["tests"]["ordinary"]["units"]
    sizes = ", ".join(f"{test} {first['tests'][test]['effective_sample_size']:,.0f}" for test in tests)
    repeats = "kept as candidates" if first["repeats"] else "hidden"
    shares = "/".join(f"{share:g}" for share in first["shares"])
    rows = [
        [
            model,
            *(_cell([line["tests"][test] for line in lines if line["model"] == model]) for test in tests),
            _dials(lines, model),
            str(len({line["seed"] for line in lines if line["model"] == model})),
            str(round(_mean_of([line["cpu_s"] for line in lines if line["model"] == model]))),
        ]
        for model in models
    ]
    segments = {
        f"{segment}: {group}": [
            _mean(
                [
                    line["tests"]["ordinary"]["segments"][segment][group]
                    for line in lines
                    if line["model"] == model
                ]
            )
            for model in models
        ]
        for segment, group in SEGMENTS
    }
    counts = [first["tests"]["ordinary"]["segments"][segment][group]["units"] for segment, group in SEGMENTS]
    return "\n".join(
        [
            f"## {name}",
            "",
            f"Split {shares} in time, no filter; a seeded sample of {units:,} test positives, protocol "
            f"`full`, repeats {repeats};",
            f"left out: {left or 'nothing'}. Effective sample sizes: {sizes}. NDCG@10 with its 95 % "
            "interval over users;",
            "of several seeds the mean, and the mean of the intervals. *dial*: of the ordinary and of the "
            "balanced test.",
            "",
            markdown(["model", *tests, "dial", "seeds", "training, CPU-s"], rows),
            "",
            verdict(lines),
            "",
            _settings(lines),
            "",
            "By segment, ordinary test:",
            "",
            markdown(
                ["segment", "rows", *models],
                [
                    [part, f"{count:,}", *values]
                    for (part, values), count in zip(segments.items(), counts, strict=True)
                ],
            ),
        ]
    )


def summary(lines: list[dict[str, Any]], sets: list[str]) -> str:
    """A row per set, with what stands for its kind; a cell has the ordinary test and the balanced one."""
    models = [model for model in IN_SHORT if any(line["model"] == model for line in lines)]

    def cell(name: str, model: str) -> str:
        mine = [line["tests"] for line in lines if (line["set"], line["model"]) == (name, model)]
        values = [_value([tests[test] for tests in mine]) for test in SHOWN]
        return " / ".join(values) if mine else "–"

    rows = [[name, *(cell(name, model) for model in models)] for name in sets]
    return markdown(["NDCG@10, ordinary / balanced", *(IN_SHORT[model] for model in models)], rows)


def _models(lines: list[dict[str, Any]]) -> list[str]:
    return [name for name in MODELS if any(line["model"] == name for line in lines)]


def _cell(found: list[dict[str, Any]]) -> str:
    low, high = (sum(each["interval"][place] for each in found) / len(found) for place in (0, 1))
    return f"{_value(found)} ({low:.4f}-{high:.4f})"


def _value(found: list[dict[str, Any]]) -> str:
    return f"{sum(each['metrics'][METRIC] for each in found) / len(found):.4f}" if found else "–"


def _mean(groups: list[dict[str, Any]]) -> str:
    values = [group[METRIC] for group in groups if METRIC in group]
    return f"{sum(values) / len(values):.4f}" if values else "–"


def verdict(lines: list[dict[str, Any]]) -> str:
    """Pulse against the best of all others, in each test."""
    said = []
    for test in SHOWN:
        means = {
            model: _mean_of(
                [line["tests"][test]["metrics"][METRIC] for line in lines if line["model"] == model]
            )
            for model in _models(lines)
        }
        rivals = {model: value for model, value in means.items() if not model.startswith("pulse")}
        if "pulse" in means and rivals:
            best = max(rivals, key=lambda model: rivals[model])
            said.append(f"{test} {means['pulse'] / rivals[best] - 1:+.0%} against {best}")
    return f"Pulse and the best of the others: {'; '.join(said)}." if said else ""


def _dials(lines: list[dict[str, Any]], model: str) -> str:
    """The dials that were used, test by test, where the model has one that is chosen."""
    if not model.startswith("pulse"):
        return ""
    mine = [line["tests"] for line in lines if line["model"] == model]
    return ", ".join(f"{_mean_of([tests[test]['dial'] for tests in mine]):.2g}" for test in SHOWN)


def _mean_of(values: list[float]) -> float:
    return sum(values) / max(len(values), 1)


def _settings(lines: list[dict[str, Any]]) -> str:
    """With which settings the runs of a table were made, told from what is stored with them."""
    other = []
    for line in lines:
        given = {name: value for name, value in line["settings"].items() if name != "model"}
        made = unskew.create_model(line["settings"]["model"])
        defaults = asdict(made.config) | asdict(made.training)
        changed = [f"`{name}` {value}" for name, value in given.items() if defaults[name] != value]
        if changed:
            other.append(f"{line['model']}: {', '.join(changed)}")
    said = "Settings: each model's defaults (`unskew models`)"
    return f"{said}; but for {'; '.join(dict.fromkeys(other))}." if other else f"{said}."


# What is stored


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


def _lines() -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        if RESULTS.exists()
        else []
    )


def _stored(name: str, model: str, seed: int) -> bool:
    return any((line["set"], line["model"], line["seed"]) == (name, model, seed) for line in _lines())


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
