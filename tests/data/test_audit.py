"""Each kind of leak is planted and must be caught, by name and with its first row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.audited import (
    CHECKS,
    MAX_AUC_DEVIATION,
    PAIRS,
    baskets,
    catalogue,
    failed,
    finding,
    impressions,
    nearly_everything,
    of_one_day,
    split_of,
    two_moments,
)
from unskew.data.audit import audit as module
from unskew.data.audit.audit import audit, require_no_leak
from unskew.data.audit.label_leakage import foreign_core
from unskew.data.log.held_out import held_out
from unskew.data.log.item_feed import ItemFeed, with_items
from unskew.data.log.split import Split
from unskew.data.log.views import Sequences
from unskew.world.simulate import simulate


def test_an_clean_split_passes(split: Split) -> None:
    findings = require_no_leak(split)
    assert {finding.check for finding in findings} == CHECKS
    assert all(finding.checked > 0 for finding in findings)
    assert [
        finding.note.startswith("AUC 0.500 on training pairs")
        for finding in findings
        if finding.check in MAX_AUC_DEVIATION
    ] == [
        True,
        True,
        False,
    ]


CLEAN = {
    "only positives": lambda: random_table(negatives=0.0),
    "few negatives": lambda: random_table(negatives=0.2, seed=3),
    "many negatives": lambda: random_table(negatives=0.7),
    "baskets": baskets,
    "items shown before they are taken": impressions,
    "one negative each": lambda: impressions(1),
    "nearly everything": nearly_everything,
    "everything shown at the beginning": catalogue,
    "two moments": two_moments,
    "half of it in one moment": of_one_day,
}


@pytest.mark.parametrize("repeats", ["keep", "hide"])
@pytest.mark.parametrize("kind", CLEAN)
def test_clean_splits_of_all_kinds_pass(kind: str, repeats: str) -> None:
    assert failed(split_of(CLEAN[kind](), repeats=repeats)) == set()


def test_vocabulary_counts_of_the_whole_log(split: Split) -> None:
    log = split.log
    everything = log.label == 1
    leaky = replace(split, item_counts=np.bincount(log.item[everything], minlength=len(log.items)))
    assert failed(leaky) == {"item counts"}
    assert failed(
        replace(split, user_counts=np.bincount(log.user[everything], minlength=len(log.users)))
    ) == {"user counts"}


def test_items_born_after_training_called_known() -> None:
    log = unskew.read({"user": list("abcdabcd"), "item": list("xxyyxzzy"), "time": range(8)})
    split = unskew.split(log)
    assert failed(split) == set()
    assert finding(split, "empty audience").note == "too few rows to tell"
    with pytest.raises(unskew.Leak, match=r"known items: 'z' is called known, but training never saw it"):
        require_no_leak(replace(split, known_items=3))
    with pytest.raises(unskew.Leak, match=r"known items: 'y' is called not known, but training saw it"):
        require_no_leak(replace(split, known_items=1))
    with pytest.raises(unskew.Leak, match=r"known users: 'd' is called not known"):
        require_no_leak(replace(split, known_users=3))


def test_a_balanced_test_that_is_not(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_training_counts(split, part, test="ordinary", *rest):
        found = held_out(split, part, test, *rest)
        return (
            replace(found, weights=1 / np.maximum(split.item_counts[split.log.item[found.rows]], 1))
            if test == "balanced"
            else found
        )

    monkeypatch.setattr(module, "held_out", by_training_counts)
    assert failed(split) == {"balanced test"}
    with pytest.raises(
        unskew.Leak, match=r"balanced test: item 'i\d+' weighs [\d.e-]+ in the balanced test; expected 1"
    ):
        require_no_leak(split)


def test_training_rows_at_or_after_the_border(split: Split) -> None:
    class Overlapping(Split):
        def mask(self, part):
            return self.log.time <= self.train_end if part == "train" else super().mask(part)

    leaky = Overlapping(**{name: getattr(split, name) for name in Split.__dataclass_fields__})
    assert "borders" in failed(leaky)


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_a_view_that_includes_the_present(split: Split, name: str) -> None:
    class AtOrBefore(Sequences):
        def before(self, entity, time, newest=None):
            return super().before(entity, np.asarray(time) + 1, newest)

    view = getattr(split.log, name)
    leaky = replace(split, log=replace(split.log, **{name: AtOrBefore(view.ids, view.times, view.offsets)}))
    assert failed(leaky) >= {name} | PAIRS  # what it says, and what a sampler makes of it
    with pytest.raises(
        unskew.Leak,
        match=rf"{name}: row \d+ \(user 'u\d+', item 'i\d+', time \d+\) holds an event that is not before it",
    ):
        require_no_leak(leaky)


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_the_inverted_comparison_of_the_authors(split: Split, name: str) -> None:
    class AtOrAfter(Sequences):
        def before(self, entity, time, newest=None):
            _, middle = super().before(entity, time)
            return middle, np.minimum(middle + (newest or 10), self.offsets[np.asarray(entity) + 1])

    view = getattr(split.log, name)
    leaky = replace(split, log=replace(split.log, **{name: AtOrAfter(view.ids, view.times, view.offsets)}))
    assert failed(leaky) >= {name} | PAIRS


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_another_ones_events(split: Split, name: str) -> None:
    class Neighbour(Sequences):
        def before(self, entity, time, newest=None):
            return super().before((np.asarray(entity) + 1) % len(self), time, newest)

    view = getattr(split.log, name)
    leaky = replace(split, log=replace(split.log, **{name: Neighbour(view.ids, view.times, view.offsets)}))
    assert failed(leaky) >= {name} | PAIRS


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_falsified_times_in_a_view(split: Split, name: str) -> None:
    """An event moved into the past looks innocent to a look-up; only the comparison with the log shows it."""
    view = getattr(split.log, name)
    earlier = Sequences(view.ids, view.times - 1, view.offsets)
    assert failed(replace(split, log=replace(split.log, **{name: earlier}))) >= {"views"} | PAIRS


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_offsets_that_give_one_ones_events_to_another(split: Split, name: str) -> None:
    view = getattr(split.log, name)
    shifted = view.offsets.copy()
    shifted[1:-1] += 1
    assert "views" in failed(
        replace(split, log=replace(split.log, **{name: Sequences(view.ids, view.times, shifted)}))
    )


def test_an_audit_that_looks_at_nothing_is_refused(split: Split) -> None:
    with pytest.raises(unskew.BadInput, match="there is nothing to look at"):
        audit(split, history=0)


# A k-core that was made before


def cored(k: int, rare: int = 0) -> pa.Table:
    """Some users and items with at least k rows each, and `rare` rows of another item."""
    pairs = [(user, (user + step) % 30) for user in range(30) for step in range(k)] + [
        (n, 99) for n in range(rare)
    ]
    user, item = zip(*pairs, strict=True)
    time = np.random.default_rng(6).permutation(len(pairs))
    return pa.table({"user": user, "item": item, "time": time})


@pytest.mark.parametrize(("k", "rare", "found"), [(5, 0, 5), (3, 0, 3), (2, 0, 0), (5, 4, 4), (5, 2, 0)])
def test_a_foreign_k_core_is_seen(k: int, rare: int, found: int) -> None:
    log = unskew.read(cored(k, rare))
    assert foreign_core(log) == found
    note = finding(unskew.split(log), "look-ahead filter").note
    assert note.startswith("this looks like a k-core filtered log: ") == bool(found)
    assert (note == "no k-core") == (not found)


def test_the_foreign_k_core_counts_what_it_made_certain() -> None:
    """The last row of each item is certain: it has had fewer than five before."""
    found = finding(unskew.split(unskew.read(cored(5)), repeats="keep"), "look-ahead filter")
    assert f"made {found.checked} of {found.checked} test positives certain" in found.note
    assert found.passed
    assert "at least 5 rows, although `prepare` made no k-core" in found.note


def test_our_own_k_core_and_simulated_logs_are_no_foreign_k_core(tmp_path: Path) -> None:
    ours = unskew.prepare(cored(5), tmp_path / "core", k_core=4)
    assert foreign_core(ours) == 0
    assert finding(unskew.split(ours), "look-ahead filter").note.startswith("the 4-core made")
    assert foreign_core(simulate(users=20, items=20, steps=80).log) == 0


def test_ids_that_are_known_by_context_events_or_a_feed() -> None:
    """User d only looked before the border, and item z was listed before; both were seen, and c was not."""
    shop = {
        "user": list("abdacbdc"),
        "item": list("xyxyxzyx"),
        "time": [0, 1, 2, 3, 6, 7, 8, 9],
        "event_type": ["buy", "buy", "view", "buy", "buy", "buy", "buy", "buy"],
    }
    log = unskew.read(shop, type="event_type", target="buy", context="view")
    log = with_items(log, ItemFeed(pa.array(["z"]), np.array([1])))
    split = unskew.split(log, fractions=(43, 15, 42))
    assert failed(split) == set()
    assert (split.known_users, split.known_items) == (3, 3)
    assert failed(replace(split, known_users=2)) == {"known users"}
    assert failed(replace(split, known_users=4)) == {"known users"}
    assert failed(replace(split, known_items=2)) == {"known items"}
