"""The health of propensities in a world whose true ones are known; its verdict, its page and its command."""

import io
import json
import math

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

import unskew
from tests.conftest import SMALL_DEPS
from tests.helpers.command import run
from tests.helpers.errors import refused
from unskew.cli import main, shared
from unskew.core.errors import BadInput
from unskew.core.progress import shown_on
from unskew.diagnostics.propensity.health import (
    Health,
    health,
    judge_exposure_taken,
    logged_ground_truth,
    weighted_rows,
)
from unskew.diagnostics.propensity.page import health_page
from unskew.diagnostics.propensity.verdicts import WeightVerdict, held_back, judge_exposure, judge_weights
from unskew.propensity.correction import Correction
from unskew.propensity.power import Power
from unskew.world.simulate import simulate

CLIP = 0.05


def table(log, item, user=None, clip=CLIP, alpha=0.5):
    """What `Model.propensities` gives, with these estimates."""
    user = item if user is None else user
    weight = alpha / np.maximum(item, clip) + (1 - alpha) / np.maximum(user, clip)
    return pa.table({"item_view": item, "user_view": user, "weight": weight})


@pytest.fixture(scope="module")
def split():
    # No randomised impressions: one policy, so that its probabilities are the whole ground truth.
    return unskew.split(
        simulate(users=300, items=80, steps=60, impressions=0.2, shown=8.0, randomised=0.0, seed=2).log
    )


@pytest.fixture(scope="module")
def ground_truth(split):
    return logged_ground_truth(split.log)


def test_the_ground_truth_is_in_perfect_health(split, ground_truth):
    found = health(split, table(split.log, ground_truth, clip=1e-6), 1e-6, ground_truth)
    assert found.has_ground_truth
    for view in found.views:
        assert view.calibration.spearman == pytest.approx(1)
        assert view.calibration.error == pytest.approx(0, abs=1e-6)
        assert view.calibration.scale == pytest.approx(1)
        assert all(point.true == pytest.approx(point.estimated) for point in view.calibration.curve)
    assert len(found.views[0].calibration.curve) > 5
    assert found.views[0].clipped == 0
    balance = {part.covariate: part for part in found.balance}
    assert abs(balance["item popularity"].before) > 0.3
    for name in ("item popularity", "audience length"):
        assert abs(balance[name].after) < abs(balance[name].before) / 4
        assert abs(balance[name].after) < 0.1
    assert found.weights.effective_share < 0.7
    # By tenth: the weighted fractions are nearer to the uniform ones, and all tenths together are the whole.
    parts = found.deciles
    assert [part.number for part in parts] == list(range(1, 11))
    log, train = split.log, split.rows("train")
    taken = {
        item: log.time[(log.item == item) & (log.label == 1)].min(initial=2**62)
        for item in range(len(log.items))
    }
    existed = [
        time <= min(taken.values()) or taken[item] < time
        for item, time in zip(log.item[train], log.time[train], strict=True)
    ]
    assert sum(part.rows for part in parts) == found.pairs == sum(existed) < len(train)
    for name in ("fraction", "weighted_share", "uniform_share"):
        assert sum(getattr(part, name) for part in parts) == pytest.approx(1)
    before = sum(abs(part.fraction - part.uniform_share) for part in parts)
    assert sum(abs(part.weighted_share - part.uniform_share) for part in parts) < before / 3
    assert all(part.views[0].calibration.spearman == pytest.approx(1) for part in parts)


def test_a_constant_factor_costs_calibration_but_not_the_rest(split, ground_truth):
    plain, scaled = (
        health(split, table(split.log, factor * ground_truth, clip=1e-9), 1e-9, ground_truth)
        for factor in (1, 0.02)
    )
    found = scaled.views[0].calibration
    assert found.scale == pytest.approx(50)
    assert (found.error, found.scaled_error) == (pytest.approx(math.log10(50)), pytest.approx(0, abs=1e-6))
    assert found.spearman == pytest.approx(1)
    assert scaled.weights.effective == pytest.approx(plain.weights.effective)
    assert [part.after for part in scaled.balance] == pytest.approx([part.after for part in plain.balance])


def test_a_constant_estimate_knows_nothing(split, ground_truth):
    found = health(split, table(split.log, np.full(len(ground_truth), 0.01)), CLIP, ground_truth)
    for view in found.views:
        assert math.isnan(view.calibration.spearman)
    assert [view.clipped for view in found.views[:2]] == [1, 1]
    assert found.weights.effective_share == pytest.approx(1)
    assert [bar.fraction for bar in found.weights.histogram] == [1]
    assert all(part.after == pytest.approx(part.before) for part in found.balance)
    assert found.finding.kind is WeightVerdict.CLIPPED
    assert found.verdict().finding == found.finding.sentence
    assert "–" in {row.value for row in found.rows()}


def test_a_shuffled_estimate_is_told_from_the_ground_truth(split, ground_truth):
    wrong = np.random.default_rng(0).permutation(ground_truth)
    found = health(split, table(split.log, ground_truth, wrong), CLIP, ground_truth)
    item, user, both = found.views
    assert item.calibration.spearman == pytest.approx(1)
    assert abs(user.calibration.spearman) < 0.05
    assert 0.2 < both.calibration.spearman < 0.95
    assert user.calibration.scaled_error > 0.3


def test_only_training_rows_are_looked_at(split, ground_truth):
    estimates = ground_truth.copy()
    estimates[~split.mask("train")] = 0.5
    assert health(split, table(split.log, estimates), CLIP, ground_truth) == health(
        split, table(split.log, ground_truth), CLIP, ground_truth
    )


def test_one_view_and_no_ground_truth(split, ground_truth):
    nothing = np.full(len(ground_truth), np.nan)
    found = health(
        split, pa.table({"item_view": ground_truth, "user_view": nothing, "weight": 1 / ground_truth}), CLIP
    )
    assert [view.name for view in found.views] == ["item view", "1 / weight"]
    assert not found.has_ground_truth
    assert {view.calibration for view in found.views} == {None}
    assert "Calibration" not in health_page(found, "a run")
    assert [part.title for part in found.tables()] == ["Balance by popularity", "Weights by popularity"]


@pytest.mark.parametrize("estimates", ["ground-truth", "constant"])
def test_as_json_as_table_and_as_page(split, ground_truth, estimates):
    item = ground_truth if estimates == "ground-truth" else np.full(len(ground_truth), 0.01)
    found = health(split, table(split.log, item), CLIP, ground_truth)
    document = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert document["pairs"] == found.pairs
    assert (document["views"][0]["calibration"]["spearman"] is None) == (estimates == "constant")
    assert document["verdict"]["finding"] == found.verdict().finding
    assert document["fingerprint"] == split.log.fingerprint()
    for part in found.tables():
        assert {len(line) for line in part.rows} == {len(part.head)}
        assert len(part.rows) == 10
    assert {row.group for row in found.rows()} == {
        "events",
        "item view",
        "user view",
        "both views",
        "weights",
        "balance",
    }
    page = health_page(found, "<run>", "unskew propensity health <run>", "2026-11-16")
    assert "Do the weights of &lt;run&gt; help?" in page
    # Of equal estimates there is no curve to draw.
    assert page.count("<svg") == (6 if estimates == "ground-truth" else 3)
    assert "nan" not in page
    finding = page.index('class="finding">The weights')
    assert finding < page.index("What to do") < page.index("<h2>") < page.index("<svg")
    foot = page[page.index("<footer>") :]
    assert "on 2026-11-16 with <code>unskew propensity health &lt;run&gt;</code>" in foot
    assert found.fingerprint in foot


def test_wrong_lengths_are_named(split, ground_truth):
    with pytest.raises(BadInput, match="expected one per row"):
        health(split, table(split.log, ground_truth[:-1]), CLIP)
    with pytest.raises(BadInput, match="expected one per row"):
        health(split, table(split.log, ground_truth), CLIP, rows=weighted_rows(split, 10))
    with pytest.raises(BadInput, match="true propensities"):
        health(split, table(split.log, ground_truth), CLIP, ground_truth[:-1])


# The verdict


def test_equal_weights_do_nothing():
    clipped = judge_weights(np.array([20.0] * 999 + [10.0]), clip=0.05)
    assert clipped.kind.does_nothing
    assert clipped.sentence == (
        "The weights do nothing: 99.9 % of the events are clipped to the same weight, so the model learns as "
        "if it had none; train again with a `--clip` well below 0.05."
    )
    same = judge_weights([3.0, 3.0, 3.1])
    assert same.kind.does_nothing
    assert same.sentence.startswith("The weights do nothing: they are nearly the same for all events")
    assert judge_weights([3.0, 3.0, 3.1], clip=0.05) == same  # far from the clip: 1 / 0.05 is 20


def test_a_few_weights_that_dominate_are_noisy():
    found = judge_weights([1.0] * 999 + [1e6])
    assert (found.kind, found.kind.is_warning) == (WeightVerdict.DOMINATED, True)
    assert found.sentence == (
        "A few events have most of the weight: 1,000 weighted events are only as precise as 1 unweighted "
        "ones, so training is noisy; train again with a larger `--clip`."
    )


def test_weights_that_differ_are_in_order():
    for weights in (np.linspace(1, 20, 50), []):
        assert judge_weights(weights, clip=0.05).kind is WeightVerdict.DIFFERENT


def test_the_verdict_follows_the_balance(split, ground_truth):
    def of(estimate, clip=1e-6) -> Health:
        return health(split, table(split.log, estimate, clip=clip), clip, ground_truth)

    assert of(ground_truth).finding.kind is WeightVerdict.WORK
    assert of(1 / ground_truth * ground_truth.min() ** 2).finding.kind is WeightVerdict.WORSE
    partly = of(ground_truth**0.3)
    assert partly.finding.kind is WeightVerdict.HELP
    assert not any("--clip" in advice for advice in partly.verdict().advice)  # nothing is clipped
    nothing = of(ground_truth / 100, CLIP)
    assert nothing.finding.kind is WeightVerdict.CLIPPED
    suggested = float(nothing.advice[0].split("--clip ")[1].split("`")[0])
    assert (ground_truth[weighted_rows(split)] / 100 > suggested).mean() == pytest.approx(0.9, abs=0.05)
    wrong = of(np.random.default_rng(0).permutation(ground_truth)).verdict()
    assert any("`--propensity logged`" in advice for advice in wrong.advice)
    assert not any("`--propensity logged`" in advice for advice in of(ground_truth).verdict().advice)


# A sample


def test_a_sample_is_seeded_and_of_weighted_rows(split):
    everything, some = weighted_rows(split), weighted_rows(split, 100, seed=1)
    assert len(some) == len(set(some.tolist())) == 100
    assert set(some.tolist()) <= set(everything.tolist())
    assert some.tolist() == weighted_rows(split, 100, seed=1).tolist()
    assert some.tolist() != weighted_rows(split, 100, seed=2).tolist()
    assert weighted_rows(split, 10**9).tolist() == everything.tolist()
    with refused("sample"):
        weighted_rows(split, 0)


def test_a_sample_says_so_and_is_near_the_whole(split, ground_truth):
    rows = weighted_rows(split, 2000)
    whole = health(split, table(split.log, ground_truth), CLIP, ground_truth)
    part = health(split, table(split.log, ground_truth).take(rows), CLIP, ground_truth, rows=rows)
    assert (part.pairs, part.pairs_in_training) == (2000, whole.pairs)
    assert whole.pairs == whole.pairs_in_training
    said = f"random sample of 2,000 of the {whole.pairs:,} training events"
    assert said in part.sentences()[0]
    assert said in health_page(part, "run")
    assert not any(sentence.startswith("Sample") for sentence in whole.sentences())
    assert part.rows()[0].value == f"2,000 of {whole.pairs:,}"
    assert part.weights.mean == pytest.approx(whole.weights.mean, rel=0.1)
    assert part.views[0].calibration.spearman == pytest.approx(1)


# The command


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of DEPS and its data; the paper's clip of 0.05 makes all of its weights equal."""
    folder = tmp_path_factory.mktemp("health")
    world = simulate(users=60, items=40, steps=60, impressions=0.3)
    unskew.prepare(world.log, folder / "data", duplicates="keep")
    flags = [str(part) for name, value in SMALL_DEPS.items() for part in (flag(name), value)]
    asked = ["--model", "deps", "--clip", "0.05", *flags]
    assert main(["train", str(folder / "data"), "--out", str(folder / "run"), *asked]) == 0
    return folder


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_the_command_says_that_the_weights_do_nothing(trained, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["unskew", "propensity", "health", "a run"])
    page = trained / "page.html"
    code, out, _ = run(capsys, "propensity", "health", trained / "run", "--sample", 500, "--html", page)
    assert code == 0
    said = " ".join(out.split())
    assert said.startswith("The weights do nothing: ")
    assert "500 of " in said
    assert "random sample of 500 of" in page.read_text()
    assert "<code>unskew propensity health &#39;a run&#39;</code>" in page.read_text()
    code, out, _ = run(capsys, "propensity", "health", trained / "run", "--sample", 500, "--json")
    document = json.loads(out)
    assert document["pairs"] == 500 < document["pairs_in_training"]
    assert document["verdict"]["kind"] == "clipped"
    assert document["verdict"]["finding"].startswith("The weights do nothing: ")
    code, _, err = run(capsys, "propensity", "health", trained / "run", "--sample", 0)
    assert (code, "sample 0: expected at least 1" in err) == (2, True)


def test_no_word_is_torn_at_80_columns(trained, capsys, monkeypatch):
    monkeypatch.setattr(shared, "output", Console(width=80, highlight=False, markup=False))
    code, out, _ = run(capsys, "propensity", "health", trained / "run")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for head in (
        "tenth events weighted even",
        "tenth median effective clipped, item clipped, user",
        "tenth item view user view both views",
    ):
        assert head in [" ".join(line.split()) for line in out.splitlines()]


def test_it_shows_progress(split, ground_truth, monkeypatch):
    monkeypatch.setattr("unskew.core.progress.PATIENCE", 0.0)
    monkeypatch.setattr("unskew.core.progress.PAUSE", 0.0)
    console = Console(file=io.StringIO(), highlight=False)
    with shown_on(console):
        health(split, table(split.log, ground_truth), CLIP)
    said = console.file.getvalue()
    assert "health: 1 of 11 balance" in said
    assert "health: 11 of 11" in said


# Models that take exposure out without weights


def test_how_much_the_exposed_are_held_back():
    exposure = np.log(np.repeat([1.0, 3.0, 6.0], [10, 80, 10]))
    assert held_back(np.random.default_rng(0).permutation(exposure), 1.0) == pytest.approx(6)
    assert held_back(exposure + 5, 0.5) == pytest.approx(6**0.5)
    assert held_back(np.log([2.0, 8.0]), 1.0) == pytest.approx(4)  # fewer than ten: one against one
    assert held_back([], 1.0) == 1
    assert judge_exposure(exposure, 1.0).sentence == (
        "Takes exposure out of the logits: the most exposed tenth of the items is held back by a factor of 6 "
        "against the least exposed tenth; judge it with `unskew evaluate RUN --test balanced`, and turn it "
        "back with `--debias`."
    )
    said = judge_exposure(exposure, 0.5, "weighted-negatives").sentence
    assert said.startswith("Takes exposure out of what is learned, by the weights of drawn negatives: ")
    assert "a factor of 2.45 against" in said


def test_nothing_to_take_out_and_too_much():
    assert judge_exposure(np.log(np.linspace(1, 1.08, 50)), 1.0).kind is WeightVerdict.EQUAL_EXPOSURE
    assert judge_exposure([0.0, 5.0], 0.0).kind is WeightVerdict.NO_STRENGTH
    extreme = judge_exposure(np.log([1.0, 5000.0]), 1.0)
    assert extreme.kind is WeightVerdict.EXTREME
    assert "a factor of 5,000 against" in extreme.sentence


def test_exposure_is_that_at_the_end_of_training(split):
    made = Correction(Power(0.5, CLIP, gamma=1.0), "logit-offset", 1.0, "clipped", (5, 5))
    made.fit_statistics(split)
    clicks = split.item_counts[: split.known_items]
    assert judge_exposure_taken(made, split) == judge_exposure(np.log1p(clicks), 1.0)


def debiased(folder, method: str, strength: float):
    """The command that trains a small model whose exposure is popularity, and where the run is."""
    small = ["--epochs", 1, "--valid-examples", 50, "--width", 8, "--sequences", 32]
    name = folder / f"{method}-{strength}"
    asked = [
        "--model",
        "debiased-gru4rec",
        "--method",
        method,
        "--propensity",
        "item-pro",
        "--strength",
        strength,
        *small,
    ]
    return ["train", folder / "data", "--out", name, *asked], name


@pytest.mark.parametrize("method", ["logit-offset", "weighted-negatives"])
def test_commands_say_how_much_exposure_is_taken_out(trained, capsys, method):
    command, folder = debiased(trained, method, 0.5)
    code, _, err = run(capsys, *command)
    assert code == 0, err
    split = unskew.split(unskew.Log.open(trained / "data"))
    fractions = np.sort(np.maximum(split.item_counts[: split.known_items], 0.5))
    tenth = len(fractions) // 10
    factor = np.exp(0.5 * (np.log(fractions[-tenth:]).mean() - np.log(fractions[:tenth]).mean()))
    assert factor > 1.2
    sentence = judge_exposure(np.log(fractions), 0.5, method).sentence
    assert f"a factor of {factor:.3g} against" in sentence
    assert sentence in err
    assert "The weights do nothing" not in err
    code, out, _ = run(capsys, "propensity", "health", folder, "--sample", 200, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["verdict"]["finding"] == sentence
    assert "trained without them" in document["verdict"]["advice"][0]
    code, out, _ = run(capsys, "propensity", "health", folder, "--sample", 200)
    assert " ".join(out.split()).startswith("Takes exposure out of")


def test_commands_say_that_nothing_is_taken_out(trained, capsys):
    command, folder = debiased(trained, "logit-offset", 0)
    code, _, err = run(capsys, *command)
    assert (code, "Nothing happens: no exposure is taken out" in err) == (0, True)
    code, out, _ = run(capsys, "propensity", "health", folder, "--sample", 200)
    assert (code, " ".join(out.split()).startswith("Nothing happens: ")) == (0, True)
