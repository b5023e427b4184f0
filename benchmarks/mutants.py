"""Would the tests notice? Plants one fault after the other in a copy of the sources and runs the tests that
should see it.

    python benchmarks/mutants.py [PART OF A NAME ...] [--list]

A mutant is killed if its tests fail, and survives if they pass: then a test is missing. The working tree is
never touched. Before any fault
is planted the tests must pass in the copy, and the text that a fault replaces must be there exactly once: a
list that the code has left behind says so instead of counting as killed. Not part of CI: it takes minutes.
Arguments choose mutants by their file.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

ROOT = Path(__file__).parents[1]
LONGEST = 900  # seconds; a mutant that never ends is noticed, too
PASSED, FAILED = 0, 1  # what pytest returns; anything else is no verdict


@dataclass(frozen=True)
class Mutant:
    file: str  # below src/unskew
    tests: tuple[str, ...]  # below tests
    what: str
    text: str
    planted: str


def of(file: str, tests: str, *faults: tuple[str, str, str]) -> list[Mutant]:
    """Faults of one file and the test files that should notice: what each is, the text it replaces, and what
    is planted."""
    return [Mutant(file, tuple(tests.split()), *fault) for fault in faults]


MUTANTS = [
    *of(
        "propensity.py",
        "test_propensity.py",
        (
            "the item view is not clipped",
            "return None if item is None else item.clamp(min=self.clip), None",
            "return item, None",
        ),
        (
            "alpha weighs the wrong view",
            "self.alpha / item + (1 - self.alpha) / user",
            "(1 - self.alpha) / item + self.alpha / user",
        ),
        ("weights have a gradient", "@torch.no_grad()\n    def weights(", "def weights("),
        ("the loss trains embeddings of others", "if self.trains else table(ids_BL).detach()\n", "\n"),
        (
            "ties are a past",
            "wanted.nonzero()[:, 0], past_BL[wanted]",
            "wanted.nonzero()[:, 0], (is_real(ids_BL).cumsum(1) - 1)[wanted]",
        ),
        ("the mean is over sequences", "count + int(is_real(ids).sum())", "count + len(ids)"),
        (
            "an empty view has no gradient",
            "sum((0 * parameter.sum() for parameter in self.parameters()), torch.zeros(()))",
            "torch.zeros(())",
        ),
        (
            "the bound on the normaliser decides everything",
            "undecided[of_BC[bound_BC >= least]] = True",
            "pass",
        ),
        ("frequencies are shares", "counts / counts.max()", "counts / counts.sum()"),
        (
            "a sampled normaliser is not scaled up",
            " + torch.log(torch.tensor(table.known / len(spread)))",
            "",
        ),
    ),
    *of(
        "models/debiased.py",
        "models/test_debiased.py",
        (
            "an event has its neighbour's weight",
            "self._rows()[batch.event_BL]",
            "self._rows().roll(1)[batch.event_BL]",
        ),
        (
            "weights of rows are never refreshed",
            "self._of_rows = self._mean = None  # this",
            "self._mean = None  # this",
        ),
        (
            "the mean of ips is never refreshed",
            "self._of_rows = self._mean = None  # this",
            "self._of_rows = None  # this",
        ),
        (
            "the snips mean counts padding",
            "weight / weight[counted].mean() if bool(counted.any()) else weight",
            "weight / weight.mean()",
        ),
        ("clipped weights are not times M", "return weight * self.propensity.clip if", "return weight if"),
        ("ips has no mean of one", "else weight / self._typical()", "else weight"),
        (
            "the estimator reads all of a batch",
            "self.propensity.weights(newest(batch, self.config.past_items, self.config.past_users))",
            "self.propensity.weights(batch)",
        ),
        (
            "the estimator of rows reads as much as its backbone",
            "batch_of_rows(self.split.log, rows, self.config.past_items, self.config.past_users)",
            "batch_of_rows(self.split.log, rows, self.backbone.history, self.config.past_users)",
        ),
    ),
    *of(
        "losses.py",
        "test_losses.py test_propensity.py",
        (
            "the gradient forgets the weights",
            "slope = logits.mul_(scale / normaliser)",
            "slope = logits.mul_(1 / normaliser)",
        ),
        (
            "the target's gradient forgets them",
            "slope.scatter_add_(1, target, -scale)",
            "slope.scatter_add_(1, target, -torch.ones_like(scale))",
        ),
        ("offsets are not added", "logits.add_(offsets)", "pass"),
        ("draws are not corrected for how many they are", "others_NS - log_q", "others_NS"),
        (
            "a drawn target counts twice",
            "others_NS.masked_fill(drawn_S == targets_N[:, None], -torch.inf)",
            "others_NS",
        ),
        (
            "a pair is compared the wrong way round",
            "functional.softplus(negative - positive)",
            "functional.softplus(positive - negative)",
        ),
        ("a mean forgets the weights", "terms if weight is None else terms * weight)", "terms)"),
    ),
    *of(
        "evaluate.py",
        "test_evaluate.py",
        ("a constant scorer is first", "((scores == mine[:, None]).sum(1) - 1) / 2", "0"),
        (
            "past items are hidden where they are kept",
            "if not split.repeats:\n        view",
            "if split.repeats:\n        view",
        ),
        (
            "the first item that does not exist yet is a candidate",
            ">= existing[:, None]] = -np.inf",
            "> existing[:, None]] = -np.inf",
        ),
        (
            "the discount is off by one place",
            "np.log2(np.maximum(rank, 1) + 1)",
            "np.log2(np.maximum(rank, 1) + 2)",
        ),
        (
            "a mean forgets the weights",
            "float((self.values[metric] * weights).sum() / weights.sum())",
            "float(self.values[metric].mean())",
        ),
        ("the target may be drawn against itself", "others[drawn == target[:, None]] = -np.inf", "pass"),
        (
            "an event counts at its own time",
            'np.searchsorted(times, time, "left")',
            'np.searchsorted(times, time, "right")',
        ),
        (
            "new users are called known",
            '"user": Segment(("known", "new"), (~known_user)',
            '"user": Segment(("known", "new"), (known_user)',
        ),
        ("the area under the curve counts the target", "1 - (ranks - 1) / size", "1 - ranks / size"),
        ("a tie in a visit is a loss", "+ 0.5 * (theirs == mine[row])", "+ 1.0 * (theirs == mine[row])"),
    ),
    *of(
        "significance.py",
        "test_significance.py",
        ("few seeds are not widened", "math.sqrt(seeds / (seeds - 1)) if seeds > 1", "1.0 if seeds > 1"),
        (
            "each model has users of its own",
            "np.random.default_rng([seed, 17]), np",
            "np.random.default_rng([seed, 17, stream, 1]), np",
        ),
        ("Holm is Bonferroni", "(len(p_values) - place) * p", "len(p_values) * p"),
        (
            "Holm is not monotone",
            "max(highest, min(1.0, (len(p_values) - place) * p))",
            "min(1.0, (len(p_values) - place) * p)",
        ),
        ("one seed has a p-value", "if min(seeds) > 1:\n        tail", "if max(seeds) > 0:\n        tail"),
        ("the test is one-sided", "2 * float(tail + 1 / draws)", "float(tail + 1 / draws)"),
        ("other rows are compared", "not _same_rows(first, each) or ", ""),
        ("means forget the weights", "np.bincount(of, values * weights_U)", "np.bincount(of, values)"),
        ("seeds are not drawn", "chosen = of_seeds.integers(0, seeds, seeds)", "chosen = np.arange(seeds)"),
    ),
    *of(
        "data/views.py",
        "test_views.py test_sequences.py test_batches.py",
        (
            "what happens now is past",
            "self._index.wanted(entity, time))",
            'self._index.wanted(entity, time), "right")',
        ),
        (
            "what happens now is past in large look-ups",
            "self._index.keys, wanted[order])",
            'self._index.keys, wanted[order], "right")',
        ),
        ("a window begins with somebody else's events", "np.maximum(start, end - newest)", "end - newest"),
        (
            "what appears now exists",
            'np.asarray(time, np.int64), "left")',
            'np.asarray(time, np.int64), "right")',
        ),
        (
            "a moment goes on into the next entity",
            "new[self.offsets[:-1][np.diff(self.offsets) > 0]] = True",
            "pass",
        ),
        (
            "shared windows cut too little",
            "np.maximum(-(-(end - start - length) // half), 0)",
            "np.maximum((end - start - length) // half, 0)",
        ),
        (
            "padding is on the other side",
            "(start[:, None] if right else",
            "(start[:, None] if not right else",
        ),
    ),
    *of(
        "data/held_out.py",
        "test_held_out.py",
        (
            "balanced is ordinary",
            "1 / np.bincount(log.item[rows], minlength=len(log.items))[log.item[rows]]",
            "once",
        ),
        (
            "weighted is by the propensity itself",
            "rows, 1 / np.asarray(log.propensity[rows], np.float64)",
            "rows, np.asarray(log.propensity[rows])",
        ),
        ("all rows are randomised", "log.exposed[rows] == 1", "log.exposed[rows] >= 0"),
        (
            "weights come from the sample",
            "rows, weights = rows[chosen], weights[chosen]",
            "rows, weights = rows[chosen], weights[: len(chosen)]",
        ),
        (
            "what was not there yet is company",
            "candidate = item < log.audiences.existing(time)",
            "candidate = item >= 0",
        ),
        (
            "the effective size is by the largest weight",
            "weights.sum() ** 2 / (weights**2).sum()",
            "weights.sum() / weights.max()",
        ),
        (
            "what was not clicked is a positive",
            "positive = split.mask(part) & (log.label == 1)",
            "positive = split.mask(part)",
        ),
        (
            "rows of another test count",
            "self.weights[order][place], 0.0)",
            "self.weights[order][place], 1.0)",
        ),
        ("a part ends late", "positive &= log.time < until", "positive &= log.time <= until"),
        (
            "own past items are company",
            "candidate &= ~log.had_before(log.user[rows[which]], item, time)",
            "pass",
        ),
    ),
    *of(
        "data/split.py",
        "test_split.py test_held_out.py",
        (
            "first appearances are targets",
            "(first[self.log.item] >= self.log.time)",
            "(first[self.log.item] > self.log.time)",
        ),
        (
            "the very first moment is left out",
            "(self.log.time > first.min())",
            "(self.log.time >= first.min())",
        ),
        ("repeats are targets where they are hidden", "wanted &= ~self.log.repeated", "pass"),
        (
            "training goes on into validation",
            "return np.asarray(time < self.train_end)",
            "return np.asarray(time <= self.train_end)",
        ),
        ("who has just enough is rare", "rare = counts < self.min_count", "rare = counts <= self.min_count"),
        ("counts know the future", "log.time[:positives] < train_end)", "log.time[:positives] < valid_end)"),
        (
            "repeats of the whole log decide",
            "log.repeated[:positives][train].mean()",
            "log.repeated[:positives].mean()",
        ),
        ("a border is not the nearest", "if 0 < first and wanted - first <= last - wanted:", "if 0 < first:"),
    ),
    *of(
        "data/sequences.py",
        "test_sequences.py",
        (
            "an event is a target of two windows",
            "(event >= first[:, None]) & self.wanted[event]",
            "self.wanted[event]",
        ),
        (
            "repeats are targets where they are hidden",
            "& self.wanted[event] & (event != PAD)",
            "& (event != PAD)",
        ),
        ("ties are a past", "view.moments[event] - start[:, None]", "event - start[:, None]"),
        ("a cut parts a moment", "cut = np.where(moment == first, first, after)", "cut = first"),
        ("windows do not overlap", "np.where(single & (overlap > 0), max(length, overlap), overlap)", "0"),
        ("what is left over is forgotten", "np.where(last, oldest, cut)))", "cut))"),
        (
            "every epoch is the same",
            "[self.seed, self.epoch_number, 100 + place]",
            "[self.seed, 100 + place]",
        ),
    ),
    *of(
        "data/batches.py",
        "test_batches.py",
        ("the logged item is its own negative", "np.asarray(own | (drawn == item))", "np.asarray(own)"),
        (
            "past items are never negatives",
            "if draw.repeats else draw.positives.has(user, drawn)",
            "if False else draw.positives.has(user, drawn)",
        ),
        (
            "what does not exist yet is a negative",
            "existing = np.minimum(self.log.audiences.existing(time), self.split.known_items)",
            "existing = np.full(len(time), self.split.known_items)",
        ),
        (
            "every epoch is the same",
            "[self.settings.seed, self.epoch_number, *what]",
            "[self.settings.seed, *what]",
        ),
        (
            "an audience is somebody else's",
            "np.where(end > start, end, -1)",
            "np.where(end > start, end - start, -1)",
        ),
        (
            "an item next to the logged one is never drawn",
            "drawn + (drawn >= item)",
            "drawn + (drawn > item)",
        ),
        (
            "a drawn positive is a negative",
            "np.zeros(drawn.shape) if clean else",
            "np.zeros(drawn.shape) if True else",
        ),
        (
            "a killed step is trained twice",
            "            self.step += 1\n            yield made\n        self.epoch_number",
            "            yield made\n            self.step += 1\n        self.epoch_number",
        ),
        (
            "a shorter past is the oldest",
            "place_NL = (self.length_N - longest).clamp(min=0)[:, None]",
            "place_NL = torch.zeros_like(self.length_N)[:, None]",
        ),
    ),
    *of(
        "data/batches.py",
        "models/test_debiased.py",
        (
            "neighbours in a batch are alike",
            "self.rows[random.permutation(shuffled[at : at + size])]",
            "self.rows[shuffled[at : at + size]]",
        ),
    ),
    *of(
        "train.py",
        "test_train.py",
        ("validation drops activations", "rank(self.model.eval(), self.split", "rank(self.model, self.split"),
        (
            "the fastest criterion stops training",
            "max(at.best_round.values(), default=-1)",
            "min(at.best_round.values(), default=-1)",
        ),
        (
            "a round that is no better is kept",
            "if metrics[METRIC] > at.best.get",
            "if metrics[METRIC] >= at.best.get",
        ),
        (
            "one criterion's weights are restored for all",
            '_below(f"best/{criterion}", tensors) for',
            '_below("best/ordinary", tensors) for',
        ),
        ("moments are not restored", "moments.setdefault(int(place), {})[kind] = value", "pass"),
        (
            "gradients are not shortened",
            "nn.utils.clip_grad_norm_(parameters, self.settings.gradient_norm)",
            "pass",
        ),
        (
            "the last weights recommend",
            "        if self.choose_by in self.best:\n            self.model.load",
            "        if False:\n            self.model.load",
        ),
        ("all batches of all seeds are the same", "seed = settings.seed * 1000 + place", "seed = place"),
        (
            "all models are chosen by clicks",
            'wanted = model.choose_by if choose_by == "auto"',
            'wanted = "ordinary" if choose_by == "auto"',
        ),
        ("every step drops the same", "reseed(self.settings.seed, at.step)", "reseed(self.settings.seed)"),
    ),
    *of(
        "run.py",
        "test_train.py",
        (
            "other settings of training are resumed",
            'but=("data", "hash")), None)',
            'but=("data", "hash", "training")), None)',
        ),
    ),
    *of(
        "catalog.py",
        "test_catalog.py",
        (
            "the patch of a block stops one tick early",
            "np.searchsorted(moments, time[-1])])",
            "np.searchsorted(moments, time[-1] - 1)])",
        ),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Plant faults in a copy of the sources, one after the other, and see whether the tests notice."""

    only: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Parts of file names, or of what a fault is; by default all."""
    list: bool = False
    """Only say which there are."""


def copied(into: Path) -> None:
    """As much of the tree as tests of the library need."""
    for name in ("src", "tests", "examples", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, into / name)


def verdict(tree: Path, tests: tuple[str, ...]) -> int | None:
    """What pytest returns in the copy; None if it takes too long."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        *(f"tests/{name}" for name in tests),
    ]
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=LONGEST, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def killed(tree: Path, mutant: Mutant) -> bool:
    path = tree / "src" / "unskew" / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mutant.text, mutant.planted), encoding="utf-8")
    try:
        found = verdict(tree, mutant.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
    if found not in (PASSED, FAILED, None):
        sys.exit(
            f"{mutant.file}: {mutant.what}: the tests do not even run (pytest returned {found}); plant "
            "something else"
        )
    return found != PASSED


def main(run: Run) -> None:
    chosen = [
        mutant
        for mutant in MUTANTS
        if not run.only or any(part in f"{mutant.file}: {mutant.what}" for part in run.only)
    ]
    for mutant in chosen:
        times = (ROOT / "src" / "unskew" / mutant.file).read_text(encoding="utf-8").count(mutant.text)
        if times != 1:
            sys.exit(
                f"{mutant.file}: {mutant.what}: expected the text exactly once, found it {times} times: "
                f"{mutant.text!r}"
            )
    if run.list:
        print("\n".join(f"{mutant.file}: {mutant.what}" for mutant in chosen))
        return
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(tree)
        for tests in sorted({mutant.tests for mutant in chosen}):
            if verdict(tree, tests) != PASSED:
                sys.exit(f"{' '.join(tests)}: fails without any mutant, so it would kill all of them")
        for mutant in chosen:
            started = time.perf_counter()
            noticed = killed(tree, mutant)
            word = "killed  " if noticed else "SURVIVED"
            print(f"{word} {time.perf_counter() - started:5.1f} s  {mutant.file}: {mutant.what}", flush=True)
            if not noticed:
                survivors.append(mutant)
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} killed "
        f"({1 - len(survivors) / max(len(chosen), 1):.0%})"
    )
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main(tyro.cli(Run))
