"""An estimator of one's own with learnable parameters is trained, through `debiased-sasrec` and through
DEPS; and the tutorial about it runs."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unskew
from tests.conftest import SMALL_DEPS
from unskew.api.create import create_model
from unskew.cli import main
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, batch
from unskew.data.log.split import Known
from unskew.nn.phases import Phase
from unskew.propensity.base import ESTIMATORS, Needs, Propensity

ROOT = Path(__file__).parents[2]

SMALL_SASREC = {"width": 4, "history": 6, "sequences": 64, "batch_size": 128, "valid_examples": 50}
SETTINGS = {
    "debiased-sasrec": SMALL_SASREC | {"propensity_epochs": 2, "past_items": 6, "past_users": 5},
    "deps": SMALL_DEPS | {"unsupervised_epochs": 2},
}


class Shown(Propensity, name="learned"):
    """P(o = 1) of an item alone, learned by distinguishing rows of the log from drawn items."""

    def __init__(self, known: Known, alpha: float, clip: float) -> None:
        super().__init__(alpha, clip)
        self.logit_I = nn.Parameter(torch.zeros(known.items.size + 1))  # the last one: unknown items

    @classmethod
    def build(cls, needs: Needs) -> "Shown":
        return cls(needs.known, needs.alpha, needs.clip)

    def logits(self, item: Tensor) -> Tensor:
        unknown = (item < 0) | (item >= len(self.logit_I) - 1)
        return self.logit_I[item.masked_fill(unknown, len(self.logit_I) - 1)]

    def item_view(self, batch: Batch) -> Tensor:
        return torch.sigmoid(self.logits(batch.candidates_BC))

    def user_view(self, batch: Batch) -> None:
        return None

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("shown or drawn", "pairs", self.loss, self.parameters, negatives=2),)

    def loss(self, batch: Batch) -> Tensor:
        logits_BC = self.logits(batch.candidates_BC)
        shown_BC = torch.zeros_like(logits_BC)
        shown_BC[:, 0] = 1
        return functional.binary_cross_entropy_with_logits(logits_BC, shown_BC)


class Untrained(Shown, name="without-phases"):
    """Has a parameter, and says nothing of how it is trained."""

    def phases(self) -> tuple[Phase, ...]:
        return ()


@pytest.mark.parametrize(("model", "phase"), [("deps", ""), ("debiased-sasrec", "estimator: ")])
def test_an_estimator_of_ones_own_is_trained(model: str, phase: str, split: unskew.Split) -> None:
    settings = SETTINGS[model] | {"propensity": "learned", "method": "ips-both", "epochs": 2}
    trained = create_model(model, settings | {"learning_rate": 0.03, "clip": 0.01}).fit(split)
    estimator = trained.propensity
    assert isinstance(estimator, Shown)
    learned_I = estimator.logit_I.detach()[:-1]
    assert float(learned_I.abs().mean()) > 0.15
    losses = [record.losses[f"{phase}shown or drawn"] for record in trained.records]
    assert len(losses) == 4  # two epochs of stage 1, and one before the recommender in each of stage 2
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.98 * losses[0]
    counts_I = torch.from_numpy(split.item_counts[: split.known_items].copy())
    assert torch.corrcoef(torch.stack([learned_I, counts_I.double().log()]))[0, 1] > 0.7
    weights = trained.propensities(split.log)["weight"].to_numpy()
    assert weights.std() > 0.1 * weights.mean()


def test_weights_follow_what_the_estimator_has_learned(split: unskew.Split) -> None:
    """The last step of its phases counts in the recommender's next one."""
    made = create_model("debiased-sasrec", SETTINGS["debiased-sasrec"] | {"propensity": "learned"})
    network = made.fit(split).network
    correction = network.correction
    assert correction is not None
    rows = batch(split.log, [0, 1], [100, 200], [[0, 1], [2, 3]])
    before = correction._rows().clone()
    (phase,) = correction.phases()
    optimizer = torch.optim.SGD(phase.parameters(), lr=50.0)
    optimizer.zero_grad()
    phase.loss(rows).backward()
    optimizer.step()
    assert not torch.equal(correction._rows(), before)


def test_a_parameter_that_no_phase_trains_is_an_error(split: unskew.Split) -> None:
    for model, settings in SETTINGS.items():
        with pytest.raises(BadInput, match=r"^estimator `without-phases`: no phase trains its .* logit_I"):
            create_model(model, settings | {"propensity": "without-phases"}).fit(split)
    frozen = Untrained(split.known, 0.5, 0.1)
    frozen.logit_I.requires_grad_(False)
    assert frozen.untrained_parameter_names() == set()


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first block is the file of the example, and the others are run beside that file."""
    tutorial = (ROOT / "docs" / "tutorials" / "own-estimator.md").read_text()
    file, *blocks = re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)
    example = ROOT / "examples" / "own_estimator.py"
    assert file.strip() == example.read_text().split('"""', 2)[2].strip()
    for target in re.findall(r"\]\(([^)]+)\)", tutorial):
        assert (ROOT / "docs" / "tutorials" / target).exists()
    shutil.copy(example, tmp_path)
    shutil.copy(ROOT / "examples" / "clicks.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, "own-estimator.md", "exec"), names)
    model = names["model"]
    assert isinstance(model, unskew.Model)
    assert float(model.propensity.line.weight.detach()) > 0  # popular items are shown more often
    del ESTIMATORS["shown-or-drawn"]  # the command line imports it by itself
    (commands,) = re.findall(r"```bash\n(.*?)```", tutorial, re.DOTALL)
    for command in commands.splitlines():
        assert main(command.split()[1:]) == 0, command
