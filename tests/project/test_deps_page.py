"""The table of deviations from the paper of DEPS has the defaults and the preset of the code."""

import re
from dataclasses import asdict
from pathlib import Path

from unskew.models.base import Training
from unskew.models.deps import DEPS, PAPER

PAGE = (Path(__file__).parents[2] / "docs" / "deps.md").read_text(encoding="utf-8")
PART = PAGE.split("<!-- deviations:")[1].split("<!-- end -->")[0]


def rows() -> dict[str, tuple[str, str]]:
    """The value of the paper and ours, by the name of the setting."""
    found = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \| `(\w+)` \|", PART, re.MULTILINE)
    return {name: (paper.strip(), ours.strip()) for paper, ours, name in found}


def test_our_values_are_the_defaults() -> None:
    defaults = asdict(Training()) | asdict(DEPS.Config()) | DEPS.recipe
    assert len(rows()) > 12
    for name, (_, ours) in rows().items():
        if name != "negatives":
            assert ours == str(defaults[name]), name


def test_the_values_of_the_code_are_those_of_the_preset() -> None:
    numbers = {name: re.match(r"([\d.]+)(?: \(code\)|$)", paper) for name, (paper, _) in rows().items()}
    compared = [name for name, found in numbers.items() if found and name in PAPER]
    assert set(compared) >= {"audience", "gru_layers", "unsupervised_epochs"}
    for name in compared:
        found = numbers[name]
        assert found is not None
        assert float(found[1]) == PAPER[name], name
