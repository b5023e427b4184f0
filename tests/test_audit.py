"""Each kind of leak is planted and must be caught, by name and with its first row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.conftest import columns, random_table
from unskew.data import audit as module
from unskew.data.audit import audit, require_no_leak
from unskew.data.batch import SequenceBatch
from unskew.data.held_out import held_out
from unskew.data.negatives import Positives
from unskew.data.samplers import SequenceSampler
from unskew.data.split import Split
from unskew.data.telling import Finding
from unskew.data.views import Sequences

VIEWS = {"histories", "audiences"}
PAIRS = {"batches of pairs", "batches of prefixes"}
WHOLE = {"batches of histories", "batches of sequences"}
TELLING = {"empty audience", "empty history", "own past"}
COUNTS = {
    "borders",
    "user counts",
    "item counts",
    "known users",
    "known items",
    "balanced test",
    "views",
    "look-ahead filter",
}
CHECKS = COUNTS | VIEWS | PAIRS | WHOLE | TELLING


@pytest.fixture
def split(log: unskew.Log) -> Split:
    return unskew.split(log)


def failed(split: Split) -> set[str]:
    return {finding.check for finding in audit(split) if not finding.passed}


def finding(split: Split, check: str) -> Finding:
    return next(found for found in audit(split) if found.check == check)


def baskets() -> pa.Table:
    """Users who buy half of a small catalogue again and again, nine things at a time."""
    random = np.random.default_rng(1)
    rows = [
        (user, int(item), 100 * visit + user % 7)
        for user in range(30)
        for favourites in [random.permutation(30)[:14]]
        for visit in range(12)
        for item in random.permutation(favourites)[:9]
    ]
    return pa.table(dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True)))


def impressions(shown: int = 2) -> pa.Table:
    """New items all the time, each shown for a while before anybody takes it; `shown` others with each that
    is taken."""
    random = np.random.default_rng(2)
    rows = []
    for time in range(1, 801):
        there = 20 + time // 2
        for user in random.integers(0, 50, 2):
            taken, *others = random.choice(there, 1 + shown, replace=False)
            rows += [
                (int(user), int(taken), time, 1),
                *((int(user), int(other), time, 0) for other in others),
            ]
    return pa.table(
        dict(zip(("user", "item", "time", "label"), map(list, zip(*rows, strict=True)), strict=True))
    )


def catalogue() -> pa.Table:
    """Only what was taken, but everything was shown to somebody at the beginning."""
    taken = impressions(0)
    shown = {
        "user": np.arange(420) % 50,
        "item": np.arange(420),
        "time": np.ones(420, int),
        "label": np.zeros(420, int),
    }
    return pa.concat_tables([taken, pa.table(shown)])


def nearly_everything() -> pa.Table:
    """Users who come one after the other, and go when they have had most of what there is."""
    random = np.random.default_rng(3)
    rows = [
        (user, int(item), 10 * user + place)
        for user in range(150)
        for place, item in enumerate(random.permutation(14)[:11])
    ]
    return pa.table(dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True)))


def two_moments() -> pa.Table:
    table = random_table(rows=400, times=1)
    return table.set_column(2, "time", [1_700_000_000 + 5 * (np.arange(400) % 3 == 0)])


def of_one_day() -> pa.Table:
    """Half of the rows at the very first moment, where more is taken than later."""
    table = random_table(rows=3000, negatives=0.7)
    early = np.arange(3000) < 1500
    taken = np.where(early, np.arange(3000) % 3 > 0, table["label"].to_numpy())
    return table.set_column(2, "time", [np.where(early, 7, 8 + np.arange(3000))]).set_column(
        3, "label", [taken.astype(int)]
    )


def split_of(table: pa.Table, **settings) -> Split:
    return unskew.split(unskew.read(table), **settings)


def test_an_honest_split_passes(split: Split) -> None:
    findings = require_no_leak(split)
    assert {finding.check for finding in findings} == CHECKS
    assert all(finding.checked > 0 for finding in findings)
    assert [
        finding.note.startswith("AUC 0.500 on training pairs")
        for finding in findings
        if finding.check in TELLING
    ] == [
        True,
        True,
        False,
    ]


HONEST = {
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
@pytest.mark.parametrize("kind", HONEST)
def test_honest_splits_of_all_kinds_pass(kind: str, repeats: str) -> None:
    assert failed(split_of(HONEST[kind](), repeats=repeats)) == set()


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


# What the samplers hand out


@pytest.mark.parametrize("ends", ["at the event itself", "too early"])
def test_ties_read_as_past_in_whole_sequences_and_pasts_that_are_cut(
    split: Split, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Also where both views are honest: what counts is how many events a batch says are before."""

    def moments(view: Sequences) -> np.ndarray:
        places = np.arange(len(view.ids))
        return (
            places if ends == "at the event itself" else np.repeat(view.offsets[:-1], np.diff(view.offsets))
        )

    monkeypatch.setattr(Sequences, "moments", property(moments))
    assert failed(split) - {"own past"} == WHOLE
    with pytest.raises(
        unskew.Leak,
        match=r"batches of histories: event \d+ of the histories: its past holds something that is not "
        r"strictly",
    ):
        require_no_leak(split)


@pytest.mark.parametrize("later", [1, -1])
def test_times_that_are_not_those_of_the_events(
    split: Split, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """The ids are right, and the times beside them are not."""
    right = Sequences.padded_times
    monkeypatch.setattr(Sequences, "padded_times", lambda self, *a, **k: right(self, *a, **k) + later)
    assert failed(split) >= PAIRS


def test_times_of_whole_sequences_that_are_not_those_of_the_events(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SequenceSampler._batch

    def wrong(self: SequenceSampler, chosen: list) -> SequenceBatch:
        found = made(self, chosen)
        return found._replace(time_BL=found.time_BL - 1)

    monkeypatch.setattr(SequenceSampler, "_batch", wrong)
    assert failed(split) == WHOLE


def test_ties_read_as_past_in_pairs_alone(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """The views are right when the audit asks them, and wrong when a sampler does."""
    right, asked = Sequences.before, {"by a sampler": False}

    def before(view, entity, time, newest=None):
        return right(view, entity, np.asarray(time) + asked["by a sampler"], newest)

    def handed_out(*arguments):
        asked["by a sampler"] = True
        try:
            return honest(*arguments)
        finally:
            asked["by a sampler"] = False

    honest = module._handed_out
    monkeypatch.setattr(Sequences, "before", before)
    monkeypatch.setattr(module, "_handed_out", handed_out)
    assert failed(split) == PAIRS
    with pytest.raises(
        unskew.Leak,
        match=r"batches of pairs: the (history of user|audience of item) '\w+' at time \d+ holds something",
    ):
        require_no_leak(split)


@pytest.mark.parametrize(
    "table",
    [random_table(negatives=0.0), random_table(negatives=0.2), baskets()],
    ids=["positives", "few negatives", "baskets"],
)
def test_negatives_that_are_never_past_items_where_repeats_are_kept(
    table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then being in the history means positive."""
    split = split_of(table)
    assert split.repeats
    monkeypatch.setattr(Positives, "has_now", lambda self, user, time, item: self.has(user[:, None], item))
    assert failed(split) == {"own past"}
    with pytest.raises(
        unskew.Leak,
        match=r"own past: \d+\.\d+% of the drawn negatives are past items of the user, but \d+\.\d+% of all "
        r"cand",
    ):
        require_no_leak(split)


def test_negatives_that_are_past_items_where_these_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_of(random_table(negatives=0.0), repeats="hide")
    monkeypatch.setattr(
        Positives, "has", lambda self, user, item: np.zeros(np.broadcast_shapes(user.shape, item.shape), bool)
    )
    assert failed(split) == {"own past"}


@pytest.mark.parametrize(
    "table", [impressions(), catalogue()], ids=["negatives of the log", "negatives drawn"]
)
def test_items_that_exist_as_soon_as_they_are_shown(table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their audiences are empty, and more often so where they are taken, or where they are drawn."""
    split = split_of(table)
    assert failed(split) == set()
    log = split.log
    first = np.full(len(log.items), 10**9)
    np.minimum.at(first, log.item, log.time)
    monkeypatch.setattr(Split, "first_appearance", property(lambda split: first[log.item] >= log.time))
    honest = Sequences.existing

    def existing(view, time):
        return np.searchsorted(np.sort(first), time, "left") if view is log.audiences else honest(view, time)

    monkeypatch.setattr(Sequences, "existing", existing)
    assert "empty audience" in failed(split)
    assert "it tells the label: AUC 0." in str(finding(split, "empty audience").offence)


# The k-core


@pytest.mark.parametrize("count", ["interactions", "positives"])
def test_what_a_k_core_made_certain(tmp_path: Path, count: str) -> None:
    """How many test positives are on items that had come less often so far than whatever stays must in the
    end."""
    table = impressions(1)
    log = unskew.prepare(table, tmp_path / "core", k_core=4, count=count)
    split = unskew.split(log, repeats="keep")
    rows = list(zip(*columns(log).values(), strict=True))
    counted = [row for row in rows if row[3] or count == "interactions"]
    taken = [row for row in rows if row[3]]
    tested = [
        row
        for row in taken
        if row[2] >= split.valid_end and any(i == row[1] and t < row[2] for _, i, t, _ in taken)
    ]
    certain = sum(sum(i == item and t < time for _, i, t, _ in counted) < 4 for _, item, time, _ in tested)
    assert 5 < certain < len(tested)
    said = (
        f"the 4-core made {certain} of {len(tested)} test positives certain: their items had fewer than "
        f"4 {count} by then"
    )
    assert finding(split, "look-ahead filter") == Finding("look-ahead filter", len(tested), None, said)
    again = unskew.prepare(log, tmp_path / "again")  # which removes nothing more, and forgets nothing
    assert finding(unskew.split(again, repeats="keep"), "look-ahead filter").note == said
    assert finding(unskew.split(unskew.read(table)), "look-ahead filter").note == "no k-core"
