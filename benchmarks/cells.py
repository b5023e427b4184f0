"""Cells of the tables that train models: each is a model on a data set, computed once and stored as a line.

A table names its models by `Setup`. A cell that is stored is not computed again; a network that is trained in
a folder goes on where it was stopped. A line holds the commit, the versions and the settings of its cell. A
cell whose settings have changed since, or that was computed before a given commit, is computed again.
"""

import json
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unskew
from unskew.evaluation.evaluate import Evaluation

ROOT = Path(__file__).parents[1]
METRICS = ("ndcg", "hr", "recall", "mrr")  # of those at 10, what is stored
Line = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model of a table.

    settings: those that differ from the preset, or else from the model's defaults.
    in_folder: whether it is trained in a folder, so that a run that was stopped goes on.
    """

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    in_folder: bool = False

    def create(self, seed: int) -> unskew.Model:
        """The model, not trained yet."""
        return unskew.create_model(self.model, dict(self.settings) | {"seed": seed}, self.preset)

    @property
    def flags(self) -> str:
        """Model, preset and settings as flags of `unskew train`."""
        words = ["--model", self.model, *(["--preset", self.preset] if self.preset else [])]
        for name, value in self.settings.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return " ".join(words)

    @property
    def digest(self) -> str:
        """A short text that changes with any setting, defaults included."""
        return sha256(self.create(0).settings_key.encode()).hexdigest()[:12]

    def train(self, seed: int, split: unskew.Split, work: Path, *names: str) -> tuple[unskew.Model, Line]:
        """The trained model, and what a line says of its training.

        work, names: where its folder is, and what names it beside the settings and the seed.
        """
        began = time.process_time()
        name = "-".join((*names, str(seed), self.digest))
        model, folder = self.create(seed), work / re.sub(r"[^\w.-]+", "_", name)
        if not self.in_folder:
            model.fit(split, show_progress=False)
        elif folder.exists():
            model = unskew.resume(folder, split, show_progress=False)
        else:
            work.mkdir(parents=True, exist_ok=True)
            model.fit(split, folder, show_progress=False)
        validated = [record.valid for record in model.records if record.valid]
        best = {by: max(valid[by]["ndcg@10"] for valid in validated) for by in (validated or [{}])[-1]}
        return model, {
            "preset": self.preset,
            "settings": dict(self.settings),
            "digest": self.digest,
            "epochs": max((record.epoch for record in model.records), default=0),
            "best_epoch": model.best_epoch(),
            "finished": model.is_finished,
            "valid": {by: round(value, 6) for by, value in best.items()},
            "cpu_training": round(time.process_time() - began, 1),
        }


@dataclass(frozen=True)
class CellFile:
    """The lines of a table. Of two lines with the same key, the later one counts.

    keys: the fields that name a cell.
    """

    path: Path
    keys: tuple[str, ...]

    def lines(self) -> dict[Key, Line]:
        """The line of each cell."""
        texts = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        lines = [json.loads(text) for text in texts]
        return {tuple(line[key] for key in self.keys): line for line in lines}

    def has(self, key: Key, setup: Setup, since: str | None = None) -> bool:
        """Whether a cell is stored, with the present settings of its model.

        since: a commit; a cell that was computed before it does not count.
        """
        line = self.lines().get(key)
        if line is None or line.get("digest", setup.digest) != setup.digest:
            return False
        return since is None or _descends(line.get("commit", ""), since)

    def append(self, key: Key, line: Line) -> None:
        """Store a cell."""
        whole = dict(zip(self.keys, key, strict=True)) | line | provenance()
        print(json.dumps(whole), flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(whole) + "\n")


def metrics(evaluation: Evaluation, among: Any = None) -> Line:
    """What is stored of an evaluation."""
    units = len(evaluation.user) if among is None else int(among.sum())
    values = evaluation.metrics(among)
    return {"units": units} | {name: round(values[f"{name}@10"], 6) for name in METRICS}


def provenance() -> Line:
    """The commit and the versions that computed a line."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {"commit": _git("describe", "--always", "--dirty", "--exclude=*"), "versions": versions}


def _descends(commit: str, since: str) -> bool:
    """Whether a commit is `since` or came after it. An unknown commit is not."""
    command = ["git", "merge-base", "--is-ancestor", since, commit.removesuffix("-dirty")]
    return bool(commit) and not subprocess.run(command, cwd=ROOT, check=False, capture_output=True).returncode


def _git(*arguments: str) -> str:
    output = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return output.stdout.strip()
