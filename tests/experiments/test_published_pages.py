"""The tables beside published figures: nobody is called first who is not, and conventions are as they say."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmarks.cells import ROOT, CellFile


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("published")
    keys = ("protocol", "set", "model", "seed")

    def line(model: str, seed: int, ndcg: float, finished: bool = True) -> dict[str, Any]:
        return dict(zip(keys, ("leave-one-out", "Beauty", model, seed), strict=True)) | {
            "finished": finished,
            "live": {"ndcg": ndcg, "hr": 2 * ndcg},
        }

    lines = (line("EASE", 0, 0.05), line("EASE", 1, 0.06), line("SASRec", 0, 0.09, finished=False))
    (tmp_path / "lines").write_text("".join(f"{json.dumps(of)}\n" for of in lines))
    figures = "protocol,set,model,source,ndcg10,hr10\nleave-one-out,Beauty,Theirs,A paper,{},\n"
    (tmp_path / "figures").write_text(figures.format("0.0531"))
    monkeypatch.setattr(module, "FILE", CellFile(tmp_path / "lines", keys))
    monkeypatch.setattr(module, "FIGURES", tmp_path / "figures")
    return module


def test_means_are_over_seeds_and_an_unfinished_run_is_marked(published: ModuleType) -> None:
    rows = {row.model: row for row in published.our_rows("leave-one-out", "live")}
    assert list(rows) == ["EASE", "SASRec"]
    assert rows["EASE"].text == {"Beauty": "0.0550 ± 0.0071 / 0.1100"}
    assert rows["SASRec"].text == {"Beauty": "0.0900 / 0.1800 (not finished)"}
    assert (rows["EASE"].finished, rows["SASRec"].finished) == (True, False)


def test_the_first_is_the_best_finished_model(published: ModuleType) -> None:
    rows = [*published.our_rows("leave-one-out", "live"), *published.published_rows("leave-one-out")]
    assert published.standing(rows, "Beauty") == (
        "Beauty: our best is EASE with 0.0550, the best published one Theirs with 0.0531: "
        "ours is first (1.04 times)."
    )
    rows[-1].ndcg["Beauty"] = 0.06
    assert "**ours is not first** (0.92 times)" in published.standing(rows, "Beauty")
    assert "popularity (Beauty), popularity (Sports)" in published.missing(rows)
    assert "EASE (Beauty)" not in published.missing(rows)


def test_what_a_user_without_a_like_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    coat = importlib.import_module("coat_published")
    user, scores = np.array([0, 0, 0, 1, 1]), np.array([0.9, 0.5, 0.1, 0.3, 0.2])
    likes = np.array([False, True, False, False, False])
    second = 1 / np.log2(3)  # the like of the first user is second
    assert coat.ndcg(scores, user, likes, None) == pytest.approx(second)
    assert coat.ndcg(scores, user, likes, 1.0) == pytest.approx((second + 1) / 2)


def test_a_random_ranking_is_worth_half_in_the_published_convention() -> None:
    """As stored: 0.47 by their convention, 0.30 by ours, and an AUC of a half in both."""
    text = (ROOT / "results" / "coat_published.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    chance = [line for line in lines if line["model"] == "random ranking"]
    means = {
        name: np.mean([line["ndcg@5"] for line in chance if line["convention"] == name])
        for name in ("published", "ours")
    }
    assert means == pytest.approx({"published": 0.46, "ours": 0.3}, abs=0.02)
    assert np.mean([line["auc"] for line in chance]) == pytest.approx(0.5, abs=0.02)
