"""The training loop: batches, steps, validation."""

from dataclasses import replace

import pytest
import torch

import unskew
from tests.helpers.runs import CRITERIA, SHORT, TINY, train
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import evaluation, rank
from unskew.models.deps import DEPS
from unskew.models.sasrec import SASRec
from unskew.nn.phases import Stage
from unskew.training.trainer import Trainer


def test_validation_drops_nothing(small_split: unskew.Split) -> None:
    """What an epoch records is what its weights do without dropout."""
    config = SASRec.Config(width=8, history=6, dropout=0.8)
    network, trainer = train(small_split, "sasrec", config, replace(SHORT, learning_rate=0.02))
    assert trainer.best.keys() == {*CRITERIA}
    for criterion, state in trainer.best.items():
        network.load_state_dict(state)
        ranked = rank(network.eval(), small_split, trainer.valid.rows, SHORT.seed)
        found = evaluation(small_split, ranked, "full", held_out(small_split, "valid", criterion)).metrics()
        record = trainer.records[trainer.progress.best_epoch[criterion] - 1]
        assert record.valid[criterion] == pytest.approx(found, abs=1e-6)


# Steps


class Plain(SASRec):
    """Trained by plain gradient descent: a step is as long as the gradient says."""

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        (stage,) = super().stages(epochs)
        descent = replace(
            stage.phases[0], optimizer=lambda parameters, rate, decay: torch.optim.SGD(parameters, lr=rate)
        )
        return (replace(stage, phases=(descent,)),)


def test_long_gradients_are_shortened(small_split: unskew.Split) -> None:
    """Of all parameters together, and only if they are longer."""

    def moved(norm: float) -> float:
        torch.manual_seed(0)
        model = Plain(small_split.known, SASRec.Config(width=8, history=6, dropout=0.0))
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        one_step = replace(SHORT, epochs=1, sequences=10_000, learning_rate=0.5, gradient_norm=norm)
        Trainer(model, small_split, one_step).run()
        steps = [(value.detach() - before[name]).flatten() for name, value in model.named_parameters()]
        return float(torch.cat(steps).norm())

    free = moved(1e9) / 0.5
    assert moved(0.3 * free) == pytest.approx(0.5 * 0.3 * free, rel=1e-3)
    assert moved(2 * free) == pytest.approx(0.5 * free, rel=1e-3)


def test_other_seeds_have_other_batches_and_so_have_other_phases(small_split: unskew.Split) -> None:
    def first(seed: int) -> dict[str, list[int]]:
        samplers = Trainer(DEPS(small_split.known, TINY), small_split, replace(SHORT, seed=seed)).samplers
        made = {name: next(iter(sampler.epoch())) for name, sampler in samplers.items()}
        return {name: batch.user_B.tolist() for name, batch in made.items()}

    one, other = first(3), first(4)
    assert one == first(3)
    assert not any(users == other[name] for name, users in one.items())
    assert one["propensity"] != one["masked"]  # both walk over whole sequences


def test_a_loss_that_is_not_a_number_stops_with_a_message(small_split: unskew.Split, monkeypatch) -> None:
    nan = torch.tensor(float("nan"), requires_grad=True)
    monkeypatch.setattr(DEPS, "unbiased_loss", lambda self, batch: nan)
    with pytest.raises(unskew.UnskewError, match="the loss of phase unbiased is nan"):
        train(small_split, "deps", TINY, SHORT)
