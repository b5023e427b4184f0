"""What samplers hand out and features that tell the label: each leak is planted and must be caught."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.conftest import columns, random_table
from tests.helpers.audited import PAIRS, WHOLE, baskets, catalogue, failed, finding, impressions, split_of
from unskew.data.audit import audit as module
from unskew.data.audit.audit import require_no_leak
from unskew.data.audit.label_leakage import Finding
from unskew.data.batches.batch import SequenceBatch
from unskew.data.batches.negatives import Positives
from unskew.data.batches.samplers import SequenceSampler
from unskew.data.log.split import Split
from unskew.data.log.views import Sequences

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ends", ["at the event itself", "too early"])
def test_ties_read_as_past_in_whole_sequences_and_pasts_that_are_cut(
    split: Split, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Also where both views are original: what counts is how many events a batch says are before."""

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
            return original(*arguments)
        finally:
            asked["by a sampler"] = False

    original = module._handed_out
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
    original = Sequences.existing

    def existing(view, time):
        return (
            np.searchsorted(np.sort(first), time, "left") if view is log.audiences else original(view, time)
        )

    monkeypatch.setattr(Sequences, "existing", existing)
    assert "empty audience" in failed(split)
    assert "it reveals the label: AUC 0." in str(finding(split, "empty audience").offence)


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
