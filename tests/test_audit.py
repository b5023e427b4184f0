"""Each kind of leak is planted and must be caught, by name and with its first row."""

from dataclasses import replace

import numpy as np
import pytest

import unskew
from unskew.data.audit import audit, require_no_leak
from unskew.data.split import Split, inverse_popularity
from unskew.data.views import Sequences

CHECKS = {"borders", "user counts", "item counts", "known users", "known items", "resampling weights", "histories", "audiences", "views"}


@pytest.fixture
def split(log: unskew.Log) -> Split:
    return unskew.split(log)


def failed(split: Split) -> set[str]:
    return {finding.check for finding in audit(split) if not finding.passed}


def test_an_honest_split_passes(split: Split) -> None:
    findings = require_no_leak(split)
    assert {finding.check for finding in findings} == CHECKS
    assert all(finding.checked > 0 for finding in findings)


def test_vocabulary_counts_of_the_whole_log(split: Split) -> None:
    log = split.log
    everything = log.label == 1
    leaky = replace(split, item_counts=np.bincount(log.item[everything], minlength=len(log.items)))
    assert failed(leaky) == {"item counts"}
    assert failed(replace(split, user_counts=np.bincount(log.user[everything], minlength=len(log.users)))) == {"user counts"}


def test_items_born_after_training_called_known() -> None:
    log = unskew.read({"user": list("abcdabcd"), "item": list("xxyyxzzy"), "time": range(8)})
    split = unskew.split(log)
    assert failed(split) == set()
    with pytest.raises(unskew.Leak, match=r"known items: 'z' is called known, but training never saw it"):
        require_no_leak(replace(split, known_items=3))
    with pytest.raises(unskew.Leak, match=r"known items: 'y' is called not known, but training saw it"):
        require_no_leak(replace(split, known_items=1))
    with pytest.raises(unskew.Leak, match=r"known users: 'd' is called not known"):
        require_no_leak(replace(split, known_users=3))


def test_resampling_weights_of_the_held_out_part(split: Split) -> None:
    log = split.log
    held_out = np.bincount(log.item[(log.time >= split.train_end) & (log.label == 1)], minlength=len(log.items))
    assert failed(replace(split, acceptance=inverse_popularity(held_out, 1.0))) == {"resampling weights"}


def test_the_authors_resampling_is_called_what_it_is(log: unskew.Log) -> None:
    with pytest.raises(unskew.Leak, match="authors' resampling counts the held-out part"):
        require_no_leak(unskew.split(log, resample="authors"))


def test_training_rows_at_or_after_the_border(split: Split) -> None:
    class Overlapping(Split):
        def mask(self, part, test="ordinary"):
            return self.log.time <= self.train_end if part == "train" else super().mask(part, test)

    leaky = Overlapping(**{name: getattr(split, name) for name in Split.__dataclass_fields__})
    assert "borders" in failed(leaky)


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_a_view_that_includes_the_present(split: Split, name: str) -> None:
    class AtOrBefore(Sequences):
        def before(self, entity, time, newest=None):
            return super().before(entity, np.asarray(time) + 1, newest)

    view = getattr(split.log, name)
    leaky = replace(split, log=replace(split.log, **{name: AtOrBefore(view.ids, view.times, view.offsets)}))
    assert failed(leaky) == {name}
    with pytest.raises(unskew.Leak, match=rf"{name}: row \d+ \(user 'u\d+', item 'i\d+', time \d+\) holds an event that is not before it"):
        require_no_leak(leaky)


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_the_inverted_comparison_of_the_authors(split: Split, name: str) -> None:
    class AtOrAfter(Sequences):
        def before(self, entity, time, newest=None):
            _, middle = super().before(entity, time)
            return middle, np.minimum(middle + (newest or 10), self.offsets[np.asarray(entity) + 1])

    view = getattr(split.log, name)
    leaky = replace(split, log=replace(split.log, **{name: AtOrAfter(view.ids, view.times, view.offsets)}))
    assert failed(leaky) == {name}


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_another_ones_events(split: Split, name: str) -> None:
    class Neighbour(Sequences):
        def before(self, entity, time, newest=None):
            return super().before((np.asarray(entity) + 1) % len(self), time, newest)

    view = getattr(split.log, name)
    leaky = replace(split, log=replace(split.log, **{name: Neighbour(view.ids, view.times, view.offsets)}))
    assert failed(leaky) == {name}


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_falsified_times_in_a_view(split: Split, name: str) -> None:
    """An event moved into the past looks innocent to a look-up; only the comparison with the log shows it."""
    view = getattr(split.log, name)
    earlier = Sequences(view.ids, view.times - 1, view.offsets)
    assert failed(replace(split, log=replace(split.log, **{name: earlier}))) == {"views"}


@pytest.mark.parametrize("name", ["histories", "audiences"])
def test_offsets_that_give_one_ones_events_to_another(split: Split, name: str) -> None:
    view = getattr(split.log, name)
    shifted = view.offsets.copy()
    shifted[1:-1] += 1
    assert "views" in failed(replace(split, log=replace(split.log, **{name: Sequences(view.ids, view.times, shifted)})))


def test_an_audit_that_looks_at_nothing_is_refused(split: Split) -> None:
    with pytest.raises(unskew.BadInput, match="there is nothing to look at"):
        audit(split, history=0)
