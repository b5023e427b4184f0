"""What Pulse reads (`reads`), what it starts from (`start`, `pull`), and how far it looks ahead
(`horizon`)."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unskew
from tests.models.test_pulse import friends
from unskew.models.base import Training, build
from unskew.models.pulse.model import STRENGTHS, ZERO, Pulse, PulseSampler, PulseZero
from unskew.models.pulse.signals import SCALES
from unskew.testing.models import CHECKS, builder, every_parameter_is_reached, example_split

SHORT = Training(epochs=1, batch_size=64, valid_examples=60)


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    return example_split()


@pytest.mark.parametrize("reads", ["counts", "neighbours"])
def test_an_ablation_reads_its_part_alone(split: unskew.Split, reads: Any) -> None:
    keep = unskew.split(split.log, repeats="keep")
    config = Pulse.Config(**Pulse.presets[reads], sample=200, drawn=8)
    rows = PulseSampler(build(Pulse, keep, config), keep, 0, 200)._read
    whole_config = dataclasses.replace(config, reads="targets")
    whole = PulseSampler(build(Pulse, keep, whole_config), keep, 0, 200)._read
    neighbours, own = rows.w_BCF.split([len(SCALES), rows.w_BCF.shape[-1] - len(SCALES)], dim=-1)
    if reads == "counts":
        assert not neighbours.any()
        assert torch.equal(own, whole.w_BCF[..., len(SCALES) :])
        assert torch.equal(rows.a_BCF, whole.a_BCF)
        assert torch.equal(rows.u_BF, whole.u_BF)
    else:
        assert torch.equal(neighbours, whole.w_BCF[..., : len(SCALES)])
        assert not own.any()
        assert not rows.a_BCF.any()
        assert not rows.u_BF.any()


@pytest.mark.parametrize("reads", ["counts", "neighbours"])
def test_an_ablation_keeps_the_contract(split: unskew.Split, reads: Any) -> None:
    """Except that what reads the other part is not trained."""
    for check in CHECKS:
        if check is not every_parameter_is_reached:
            check(builder(Pulse, Pulse.Config(reads=reads, sample=300)), split)


def test_training_that_gains_nothing_keeps_the_shipped_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where training learns the opposite, the run is pulse-zero, and so is its refit."""
    loss = Pulse.softmax_loss
    monkeypatch.setattr(Pulse, "softmax_loss", lambda self, batch: -loss(self, batch))
    split = friends()  # where neighbours matter
    brief = {"sample": 300, "epochs": 2, "valid_examples": 100}
    model = unskew.create_model("pulse", brief).fit(split, tmp_path / "run", show_progress=False)
    zero = unskew.create_model("pulse-zero", {"valid_examples": 100}).fit(split, show_progress=False)
    assert (model.best_epoch(), model.records[0].stage) == (0, "before training")
    found, expected = (each.evaluate(split, show_progress=False).metrics() for each in (model, zero))
    assert found == pytest.approx(expected)
    assert unskew.load(tmp_path / "run").evaluate(split, show_progress=False).metrics() == found
    again = model.refit(split.log, show_progress=False)
    assert again.config.start == "kept"
    for name, value in load_file(ZERO).items():
        assert torch.equal(again.network.state_dict()[name], value)
    assert again.chosen == model.chosen


def test_other_shapes_have_no_shipped_weights(split: unskew.Split) -> None:
    for config in (Pulse.Config(hidden=32), Pulse.Config(reads="counts")):
        assert build(Pulse, split, config).starting_points() == []
    assert build(Pulse, split, Pulse.Config()).starting_points()
    for wrong in ({"pull": 0.1, "start": "random"}, {"pull": 0.1, "start": "shipped", "hidden": 32}):
        with pytest.raises(unskew.BadInput, match="can be drawn towards them"):
            Pulse(split.known, Pulse.Config(**wrong))
    with pytest.raises(unskew.BadInput, match=r"^start kept: the shipped weights are 64 wide"):
        Pulse(split.known, Pulse.Config(start="kept", hidden=32))


def test_it_starts_from_the_shipped_weights_and_is_drawn_towards_them(split: unskew.Split) -> None:
    shipped = load_file(ZERO)

    def distance(pull: float) -> float:
        config = Pulse.Config(start="shipped", pull=pull, sample=300)
        network = build(Pulse, split, config)
        optimizer = torch.optim.SGD(network.parameters(), 0.01)
        batch = next(PulseSampler(network, split, 0, 200).epoch())
        for _ in range(20):
            optimizer.zero_grad()
            network.softmax_loss(batch).backward()
            optimizer.step()
        return sum(
            float(((value.detach() - shipped[name]) ** 2).sum())
            for name, value in network.named_parameters()
            if name in shipped
        )

    start = build(Pulse, split, Pulse.Config(start="shipped")).state_dict()
    assert all(torch.equal(start[name], value) for name, value in shipped.items())
    assert 0 < distance(10.0) < 0.5 * distance(0.0)


def test_kept_is_pulse_zero(split: unskew.Split) -> None:
    kept, zero = (
        build(kind, split, config)
        for kind, config in ((Pulse, Pulse.Config(start="kept")), (PulseZero, PulseZero.Config()))
    )
    assert kept.stages(5) == zero.stages(5) == ()
    assert len(kept.options(split)) == len(STRENGTHS)


# A longer horizon


@pytest.mark.parametrize(("horizon", "ticks"), [("40", 40), ("all", None)])
def test_half_of_the_lists_are_made_at_a_moment_within_the_horizon(
    split: unskew.Split, horizon: str, ticks: int | None
) -> None:
    split = unskew.split(split.log, repeats="hide")
    ticks = split.valid_end - split.train_end if ticks is None else ticks
    log = split.log
    model = build(Pulse, split, Pulse.Config(horizon=horizon, sample=400, drawn=20))
    rows = PulseSampler(model, split, 0, 400)._read
    event, moment = rows.event_B.numpy(), rows.times_B.numpy()
    ahead = log.time[event] - moment
    assert 0 == ahead.min()
    assert 0.8 * ticks < ahead.max() <= ticks
    moved = ahead > 0
    first = log.audiences.first_times[log.item[event]]
    assert (first < moment)[moved].all()
    likely = first < log.time[event] - ticks  # these could be moved as far as possible
    assert 0.4 < moved[likely].mean() < 0.6
    assert (ahead[moved] < math.sqrt(ticks)).mean() == pytest.approx(0.5, abs=0.15)  # orders of magnitude
    expected = model.signals(log).of_items(rows.candidates_BC.numpy(), moment[:, None])
    np.testing.assert_array_equal(rows.a_BCF, expected)
    user, candidates = log.user[event][:, None], rows.candidates_BC.numpy()
    taken = log.had_before(user, candidates, np.asarray(log.time[event])[:, None])
    assert (taken & ~log.had_before(user, candidates, moment[:, None]))[:, 1:].any()
    assert rows.hidden_BC.numpy()[:, 1:][taken[:, 1:]].all()
    assert not rows.hidden_BC[:, 0].any()


def test_without_a_horizon_all_lists_are_made_at_the_time_of_their_target(split: unskew.Split) -> None:
    whole = unskew.split(split.log, fractions=(100, 0, 0))
    for cut, horizon in ((split, "next"), (whole, "all")):
        rows = PulseSampler(build(Pulse, cut, Pulse.Config(horizon=horizon, sample=200)), cut, 0, 200)._read
        np.testing.assert_array_equal(rows.times_B, cut.log.time[rows.event_B.numpy()])
    with pytest.raises(
        unskew.BadInput, match=r"^horizon 'soon': expected next, all, or a duration such as 30d"
    ):
        build(Pulse, split, Pulse.Config(horizon="soon"))


def test_a_refit_keeps_the_horizon_of_its_run(split: unskew.Split) -> None:
    brief = {"sample": 200, "epochs": 1, "valid_examples": 60}
    model = unskew.create_model("pulse", brief).fit(split, show_progress=False)
    again = model.refit(split.log, show_progress=False)
    assert again.split.valid_end == again.split.train_end
    assert float(again.network.state_dict()["horizon_ticks"]) == split.valid_end - split.train_end > 0


def test_a_run_with_a_horizon_is_the_same_from_a_disk(split: unskew.Split, tmp_path: Path) -> None:
    brief = {"horizon": "all", "sample": 300, "epochs": 1, "valid_examples": 60}
    model = unskew.create_model("pulse", brief).fit(split, tmp_path / "run", show_progress=False)
    again = unskew.load(tmp_path / "run")
    for test in ("ordinary", "balanced"):
        assert again.evaluate(split, test=test, sample=50, show_progress=False).metrics() == (
            model.evaluate(split, test=test, sample=50, show_progress=False).metrics()
        )
