"""Updates: what is tested before it is learned, when a run is published, and that it is whole or absent."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew
from tests.helpers.command import run as command
from tests.helpers.processes import run_python
from tests.helpers.updated import (
    BEGIN,
    KILLED,
    SPAN,
    add,
    card,
    drawn,
    everything_below,
    prepared,
    ruined,
    stored,
    trained,
)
from unskew.core.errors import BadInput, UnskewError
from unskew.models.base import build
from unskew.serve import open_store
from unskew.training.run import load
from unskew.training.trainer import Trainer
from unskew.update import Updating
from unskew.update import update as updates
from unskew.update.publish import one_at_a_time
from unskew.update.update import update

QUICK = Updating(least=40, epochs=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a store and a run that counts."""
    folder = tmp_path_factory.mktemp("updates")
    trained(prepared(folder / "data"), folder / "run")
    stored(folder / "e.db")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of it, but for the data."""
    shutil.copytree(made / "run", tmp_path / "run")
    for file in made.glob("e.db*"):
        shutil.copy(file, tmp_path / file.name)
    return tmp_path


# What is published


@pytest.mark.parametrize(
    "name", ["popularity", "itemknn", "pulse", "pulse-zero", "sasrec", "deps", "fpmc", "debiased-gru4rec"]
)
def test_an_updated_run_knows_what_is_new_and_can_be_updated_again(
    name: str, made: Path, place: Path
) -> None:
    run = trained(made / "data", place / "first", name)
    first = update(run, place / "e.db", place / "a", QUICK, force=True)
    assert first.verdict == "published"
    assert first.new_positives == 250
    assert update(place / "a", place / "e.db", place / "b", QUICK).verdict == "nothing new"
    add(place / "e.db", drawn(120, 2, BEGIN + 2 * SPAN, 8), "more")
    assert update(place / "a", place / "e.db", place / "b", QUICK, force=True).new_positives == 120
    model, said = unskew.load(place / "b"), card(place / "b")
    known = model.known_log
    assert {"u47", "u43"} <= set(known.users.ids.to_pylist())
    assert len(model.recommend(users=["u47", "u1"], k=3).table) == 6
    assert said["split"]["known_items"] == len(known.items)
    assert said["store"]["learned"] == {"events": 370, "recommendations": 0}
    assert (said["updated"]["parent"], said["updated"]["times"]) == ("../a", 2)
    assert said["select_by"] == card(run)["select_by"]
    assert said["chosen"][said["select_by"]] == card(run)["chosen"][said["select_by"]]
    records = [json.loads(line) for line in (place / "b" / "records.jsonl").read_text().splitlines()]
    assert [record.get("update", 0) for record in records] == sorted(r.get("update", 0) for r in records)
    if load(run).network.stages(1):
        assert {record.get("update", 0) for record in records} == {0, 1, 2}
    if name == "pulse":  # its weights rely on the scale of their inputs
        assert torch.equal(model.network.scale_a, load(run).network.scale_a)
        assert said["debias_curve"] is None  # that of the first run was measured with other weights
    # A run that is trained again with its settings has as many epochs as the first one, not as an update.
    assert model.best_epoch() == unskew.load(run).best_epoch()


def test_the_same_events_give_the_same_run(made: Path, place: Path) -> None:
    run = trained(made / "data", place / "first", "sasrec")
    for name in ("a", "b"):
        update(run, place / "e.db", place / name, QUICK, force=True)
    (one, other), before = (load(place / name).network.state_dict() for name in ("a", "b")), load(run)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert not torch.equal(one["start"], before.network.state_dict()["start"])


def test_an_optimiser_goes_on_and_a_missing_checkpoint_is_said(made: Path, place: Path) -> None:
    run = trained(made / "data", place / "first", "sasrec")
    assert update(run, place / "e.db", place / "with", QUICK, force=True).notes == ()
    (run / "checkpoint.safetensors").unlink()
    without = update(run, place / "e.db", place / "without", QUICK, force=True)
    assert without.notes == ("this run has no checkpoint, so its optimiser starts again",)
    one, other = (load(place / name).network.state_dict()["items.weight"] for name in ("with", "without"))
    assert not torch.allclose(one, other, atol=1e-4)


# Test, then train


def test_nothing_learns_from_the_window_before_it_is_ranked(
    place: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Any] = []
    run = trained(made / "data", place / "first", "sasrec")
    real_run, real_ranked = Trainer.run, updates._Update._evaluate

    def running(trainer: Trainer) -> None:
        order.append(("train", trainer.split, trainer.samplers["next item"]))
        real_run(trainer)

    def ranking(self: Any, network: Any, window: updates.Window, sample: int) -> Any:
        found = real_ranked(self, network, window, sample)
        order.append(("rank", self._cut(window.start), found))
        return found

    monkeypatch.setattr(Trainer, "run", running)
    monkeypatch.setattr(updates._Update, "_evaluate", ranking)
    update(run, place / "e.db", place / "new", replace(QUICK, replay=0.0), force=True)
    assert [step[0] for step in order] == ["train", "rank", "rank", "train", "rank"]
    (_, before, learner), (_, ranked, one), (_, _, other), (_, everything, last), (_, _, published) = order
    assert np.array_equal(published.rows, one.rows)
    start, log = before.train_end, before.log
    times = sorted(time for *_, time in drawn(250, 1, BEGIN + SPAN, 4))
    assert start == times[-50]  # the newest fifth
    assert (ranked.train_end, everything.train_end) == (start, log.now)
    assert np.array_equal(one.rows, other.rows)
    assert log.time[one.rows].min() >= start

    def learned_from(sampler: Any) -> Any:
        batches = list(sampler.epoch())
        return log.time[torch.cat([batch.event_BL[batch.target_BL] for batch in batches]).numpy()]

    # It learns from what the run held out, too, which is from its own log.
    earlier, later = learned_from(learner), learned_from(last)
    assert card(run)["split"]["train_end"] <= earlier.min() < BEGIN + SPAN < earlier.max() < start
    assert later.min() >= start
    assert np.array_equal(np.sort(later), times[-50:])


def test_the_old_run_is_ranked_on_the_new_log_as_it_is(place: Path, made: Path) -> None:
    """As `evaluate` ranks it: the codes of what it knows are the same there, because nothing came late."""
    run = trained(made / "data", place / "first", "sasrec")
    found = update(run, place / "e.db", None, QUICK, dry_run=True).tested
    assert found is not None
    log = found.before.log
    assert log is not None
    split = unskew.split(
        log, fractions=(100, 0, 0), repeats="keep" if card(run)["split"]["repeats"] else "hide"
    )
    start = int(log.time[found.before.rows].min())
    expected = unskew.load(run).evaluate(replace(split, train_end=start, valid_end=start))
    assert found.test == "ordinary"
    assert found.before.mean("ndcg@10") == pytest.approx(expected.mean("ndcg@10"), abs=1e-6)
    assert found.after.mean("ndcg@10") != found.before.mean("ndcg@10")
    assert found.found.difference == pytest.approx(found.after.mean("ndcg@10") - found.before.mean("ndcg@10"))


def test_late_events_renumber_everybody_and_the_old_run_ranks_as_before(place: Path, made: Path) -> None:
    run = trained(made / "data", place / "first", "sasrec", epochs=15, learning_rate=0.01)
    before = update(run, place / "e.db", None, QUICK, dry_run=True).tested
    add(
        place / "e.db",
        [("late user", "late item", BEGIN - 9), ("late user 2", "late item 2", BEGIN - 8)],
        "l",
    )
    found = update(run, place / "e.db", None, QUICK, dry_run=True).tested
    assert len(found.before.user) == len(before.before.user)
    assert found.before.log.items.codes(["late item"])[0] == 0
    # There are two more candidates, and nothing else has changed.
    assert found.before.mean("ndcg@10") == pytest.approx(before.before.mean("ndcg@10"), abs=0.01)


def test_what_is_counted_is_counted_again(place: Path) -> None:
    update(place / "run", place / "e.db", place / "new", QUICK, force=True)
    found = load(place / "new")
    kept = found.split.repeats
    everything = unskew.split(found.log, fractions=(100, 0, 0), repeats="keep" if kept else "hide")
    again = build(type(found.network), everything, found.network.config)
    for name in ("nearest_IK", "similarity_IK", "popularity_I"):
        assert torch.equal(found.network.state_dict()[name], again.state_dict()[name])


def test_a_window_of_a_given_length(place: Path) -> None:
    found = update(place / "run", place / "e.db", None, replace(QUICK, window="8h"), dry_run=True).tested
    assert found is not None
    times = np.sort([time for *_, time in drawn(250, 1, BEGIN + SPAN, 4)])
    ranked = found.before.log.time[found.before.rows]
    assert times[-1] - 8 * 3600 < ranked.min() < times[-1] - 7.5 * 3600
    with pytest.raises(
        BadInput, match=r"window 1h: has \d+ new positives that judge; expected at least 40 .*longer"
    ):
        update(place / "run", place / "e.db", None, replace(QUICK, window="1h"), dry_run=True)
    with pytest.raises(BadInput, match=r"all new positives are in the window.*take a shorter one"):
        update(place / "run", place / "e.db", None, replace(QUICK, window="52w"), dry_run=True)


# The rule


@pytest.mark.parametrize(
    ("low", "high", "margin", "published"),
    [
        (-0.02, -0.0001, 0.0, False),
        (-0.02, 0.0, 0.0, True),
        (-0.02, 0.01, 0.0, True),
        (-0.02, -0.0101, 0.01, False),
        (-0.02, -0.0099, 0.01, True),
    ],
)
def test_it_is_refused_if_the_whole_interval_is_below_minus_the_margin(
    low: float, high: float, margin: float, published: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = updates.compare
    monkeypatch.setattr(updates, "compare", lambda *given: replace(real(*given), low=low, high=high))
    found = update(place / "run", place / "e.db", place / "new", replace(QUICK, margin=margin))
    assert found.verdict == ("published" if published else "worse")
    assert (place / "new").exists() == published


def test_a_much_worse_run_is_refused_unless_forced(place: Path, made: Path) -> None:
    run = ruined(made / "data", place / "ruined")
    before = everything_below(place)
    quick = replace(QUICK, epochs=2)
    found = update(run, place / "e.db", place / "new", quick, current=place / "current")
    assert found.verdict == "worse"
    assert found.tested.found.high < 0
    assert found.out is None
    after = everything_below(place)
    assert after.keys() - before.keys() == {".current.lock", "ruined/refused.json"}
    again = update(run, place / "e.db", place / "new", quick, current=place / "current")
    assert again.verdict == "nothing new"
    assert again.why.startswith("an update was refused 0 positives ago; the next one waits for 40 of them")
    add(place / "e.db", drawn(39, 7, BEGIN + 2 * SPAN), "more")
    assert update(run, place / "e.db", place / "new", quick).verdict == "nothing new"
    add(place / "e.db", drawn(1, 8, BEGIN + 3 * SPAN), "last")
    assert update(run, place / "e.db", None, quick, dry_run=True).verdict != "nothing new"
    forced = update(run, place / "e.db", place / "new", quick, current=place / "current", force=True)
    assert forced.verdict == "forced"
    assert "worse" in forced.why
    assert card(place / "new")["updated"]["forced"] is True
    assert (place / "current").readlink() == Path("new")


# Nothing to do, and mistakes


def test_too_few_new_events(place: Path) -> None:
    with open_store(place / "empty.db"):
        pass
    found = update(place / "run", place / "empty.db", place / "new", QUICK)
    assert (found.verdict, found.why) == ("nothing new", "no new events")
    add(place / "few.db", drawn(79, 1, BEGIN + SPAN))
    found = update(place / "run", place / "few.db", place / "new", QUICK)
    assert found.verdict == "nothing new"
    assert found.why == "79 new positives; an update waits for 80 (--least says how many)"
    add(place / "late.db", drawn(200, 1, BEGIN))  # about 60 of them are after what the run was chosen on
    found = update(place / "run", place / "late.db", place / "new", QUICK)
    assert found.verdict == "nothing new"
    assert "new positives are newer than what this run has seen; an update waits for 80" in found.why
    assert not (place / "new").exists()


def test_mistakes_are_one_sentence_each(place: Path, made: Path) -> None:
    add(place / "views.db", drawn(90, 1, BEGIN + SPAN), kind="view")
    with pytest.raises(BadInput, match=r"no event is of a positive type \(click, purchase\); there are view"):
        update(place / "run", place / "views.db", place / "new", QUICK)
    assert update(place / "run", place / "views.db", place / "new", QUICK, positive=["view"]).out is not None
    with pytest.raises(BadInput, match="exists already"):
        update(place / "run", place / "e.db", place / "new", QUICK)
    with pytest.raises(BadInput, match="expected --out NEW"):
        update(place / "run", place / "e.db", None, QUICK)
    (place / "here").mkdir()
    with pytest.raises(BadInput, match="is not a symbolic link"):
        update(place / "run", place / "e.db", place / "more", QUICK, current=place / "here")
    add(place / "other.db", drawn(20, 1, BEGIN + SPAN))
    with pytest.raises(BadInput, match="is it another store"):
        update(place / "new", place / "other.db", place / "more", QUICK)
    with pytest.raises(BadInput, match="replay 2"):
        update(place / "run", place / "e.db", place / "more", replace(QUICK, replay=2.0))
    (place / "run" / "card.json").unlink()
    with pytest.raises(BadInput, match="this run is not finished; finish it with `unskew train --resume"):
        update(place / "run", place / "e.db", place / "more", QUICK)
    assert not (place / "more").exists()


# One at a time, whole or absent


def test_only_one_update_at_a_time(place: Path) -> None:
    with (
        one_at_a_time(place / "current"),
        pytest.raises(UnskewError, match="another update is under way; nothing was done"),
    ):
        update(place / "run", place / "e.db", place / "new", QUICK, current=place / "current")
    with one_at_a_time(place / "update"), pytest.raises(UnskewError, match="another update is under way"):
        update(place / "run", place / "e.db", place / "new", QUICK)
    assert update(place / "run", place / "e.db", place / "new", QUICK, current=place / "current").out


@pytest.mark.parametrize(
    ("when", "there"), [("weights", False), ("pointer", True), ("rename of the link", True)]
)
def test_a_killed_update_leaves_a_whole_run_or_none(when: str, there: bool, place: Path) -> None:
    (place / "current").symlink_to("run")
    killed = run_python("-c", KILLED, when, place)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert (place / "new").exists() == there
    assert (place / "current").readlink() == Path("run")
    if there:
        assert len(unskew.load(place / "new").recommend(users=["u43"], k=3).table) == 3
    out = place / ("newer" if there else "new")
    update(place / "current", place / "e.db", out, QUICK, current=place / "current")
    assert (place / "current").resolve() == out.resolve()
    left = {path.name for path in place.iterdir() if path.name.startswith(".")}
    assert left == {".current.lock"}


# The command line


def test_the_verb_prints_one_line_and_has_exit_codes(
    place: Path, made: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, link, more = place / "e.db", place / "links" / "current", ("--least", 40, "--epochs", 2)
    monkeypatch.chdir(place)
    before = everything_below(place)
    # What is drawn at random may be worse by chance.
    asked = ("update", "run", "--store", store, *more, "--margin", 1)
    code, out, _ = command(capsys, *asked, "--dry-run")
    assert code == 0
    assert out.startswith("would be published: 250 new positives; NDCG@10 (ordinary) on the newest ")
    assert out.count("\n") == 1
    assert everything_below(place) == before
    code, out, _ = command(capsys, *asked, "--out", "a", "--current", link, "--json")
    said = json.loads(out)
    assert (code, said["verdict"], said["out"]) == (0, "published", "a")
    assert said["window"]["interval"][0] <= said["window"]["difference"] <= said["window"]["interval"][1]
    assert link.readlink() == Path("../a")
    again = ("update", link, *asked[2:], "--out", "b", "--current", link)
    code, out, _ = command(capsys, *again)
    assert (code, out) == (3, "nothing new: no new events; nothing was written\n")
    add(store, drawn(100, 3, BEGIN + 2 * SPAN), "more")
    code, out, _ = command(capsys, *again)
    assert code == 0
    assert link.readlink() == Path("../b")
    for name in ("a", "run"):
        code, out, _ = command(capsys, "update", "--rollback", "--current", link)
        assert code == 0
        assert out.startswith(f"rolled back: {link} -> {place / name} (was ")
        assert link.resolve() == place / name
    code, _, err = command(capsys, "update", "--rollback", "--current", link)
    assert code == 2
    assert "was not updated from another run" in err
    run = ruined(made / "data", place / "ruined")
    code, out, _ = command(capsys, "update", run, "--store", store, "--out", "c", *more)
    assert code == 4
    assert out.startswith("worse: ")
    with one_at_a_time(link):
        code, _, err = command(capsys, *asked, "--out", "c", "--current", link)
    assert code == 1
    assert "another update is under way" in err
    for wrong, words in (
        (("run",), "expected RUN and --store STORE"),
        (("--rollback",), "expected --current LINK"),
        (("run", "--rollback", "--current", link), "leave RUN, --store and --out away"),
    ):
        code, _, err = command(capsys, "update", *wrong)
        assert code == 2
        assert words in err
    assert not (place / "c").exists()
