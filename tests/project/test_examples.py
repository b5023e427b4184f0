"""The examples of own models: each is one file, keeps the contract, and does what it is there for."""

import re
from pathlib import Path

import pytest

import unskew
from tests.helpers.plugins import run_script
from tests.helpers.processes import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"

BEGIN = """
import sys
import torch
import numpy as np
import unskew
from unskew.testing.models import check_model, example_split
"""

TIMES = """
from time_model import FadingMean
check_model(FadingMean, FadingMean.Config(width=8, history=8))

# The older of two items was a year ago: the context is nearly that of the newer one alone.
from unskew.data.batches.batch import bare_contexts
split = example_split()
torch.manual_seed(0)
made = FadingMean(split.known, FadingMean.Config(width=8, days=1.0))
day, now = 86400, np.array([10**9])
def context(items, ages):
    times = np.array([[10**9 - age * day for age in ages]])
    return made.context(bare_contexts(np.array([0]), np.array([items], np.int32), now, times))
alone = context([2], [0])
assert torch.allclose(context([1, 2], [365, 0]), alone, atol=1e-4)
assert not torch.allclose(context([1, 2], [1, 0]), alone, atol=1e-2)
print("passed")
"""

CATEGORIES = """
from category_model import CategoryFactors, made_up
check_model(CategoryFactors, CategoryFactors.Config(width=8))
split = unskew.split(made_up())
brief = {"epochs": 4, "width": 8, "learning_rate": 0.01}
made = unskew.create_model("category-factors", brief).fit(split, show_progress=False)
new = made.evaluate(split, sample=600).by_segment()["item"]["new"]
plain = unskew.create_model("bert4rec", {"epochs": 1, "width": 8, "inner": 8}).fit(split, show_progress=False)
rival = plain.evaluate(split, sample=600).by_segment()["item"]["new"]
assert new["ndcg@20"] > 2 * rival["ndcg@20"], (new, rival)  # an item that nobody had still has a category
made.save(sys.argv[1] + "/run")
again = unskew.load(sys.argv[1] + "/run")
assert again.recommend(users=[1, 2]).table.equals(made.recommend(users=[1, 2]).table)
try:
    unskew.create_model("category-factors", {"feature": "colour"}).fit(split, show_progress=False)
except unskew.BadInput as error:
    assert "prepare it with --item-features colour" in str(error)
    print("passed")
"""


@pytest.mark.parametrize("script", [TIMES, CATEGORIES], ids=["times", "categories"])
def test_an_own_model_is_one_file(script: str, capsys, tmp_path: Path) -> None:
    run_script(EXAMPLES, BEGIN + script, tmp_path)
    assert capsys.readouterr().out == "passed\n"


@pytest.mark.slow
def test_the_afternoon_of_a_shop(tmp_path: Path) -> None:
    """From the first file to an A/B test and a deletion request, with the real service."""
    size = ("--users", 100, "--items", 40, "--days", 30)
    ended = run_python(EXAMPLES / "shop" / "afternoon.py", tmp_path / "shop", *size)
    assert ended.returncode == 0, ended.stderr
    assert "purchases were in the list that was shown before" in ended.stdout
    assert "1 users erased" in ended.stdout
    (user,) = re.findall(r"what the service knows of (\w+) now", ended.stdout)
    assert user not in unskew.Log.open(tmp_path / "shop" / "data").users.ids.to_pylist()
