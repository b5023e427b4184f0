"""The scores of the log cut at t are those of the whole log, for clean models; leaks that are planted in what
a model reads are found."""

from typing import Any

import numpy as np
import pytest

import unskew
from tests.conftest import random_table
from unskew.core.errors import BadInput
from unskew.data.log.decay import Decay
from unskew.data.log.split import cut_log
from unskew.data.log.views import Sequences
from unskew.evaluation.score_audit import audit_scores
from unskew.models.pulse.neighbours import Neighbourhood
from unskew.models.pulse.scoring import PulseCatalog

QUICK: dict[str, dict[str, Any]] = {
    "pulse": {"epochs": 1},
    "userknn": {},
    "popularity": {},
    "sasrec": {"epochs": 1, "width": 8, "history": 8},
}


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    return unskew.split(unskew.read(random_table()))


@pytest.fixture(scope="module")
def trained(split: unskew.Split) -> dict[str, Any]:
    return {
        name: unskew.create_model(name, settings).fit(split, show_progress=False).network
        for name, settings in QUICK.items()
    }


@pytest.mark.parametrize("name", QUICK)
def test_clean_models_pass(trained: dict[str, Any], split: unskew.Split, name: str) -> None:
    found = audit_scores(trained[name], split)
    assert found.passed, found.offence
    assert found.checked > 1000


def test_a_cut_log_is_what_happened_before(split: unskew.Split) -> None:
    log, time = split.log, int(np.median(split.log.time))
    cut = cut_log(log, time)
    assert cut.table().equals(log.table().filter(log.time < time))
    for whole, part in ((log.histories, cut.histories), (log.audiences, cut.audiences)):
        entity = np.arange(len(whole))
        start, end = whole.before(entity, time)
        first, last = part.before(entity, time + 1000)
        assert (last - first).tolist() == (end - start).tolist()
        assert part.ids.tolist() == whole.ids[whole.flat(start, end)[1]].tolist()
    assert cut.now == log.time[log.time < time].max() + 1


# Planted leaks


def test_decayed_counts_that_hold_the_event_of_the_moment(
    trained: dict[str, Any], split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = Decay.at
    monkeypatch.setattr(Decay, "at", lambda decay, entity, time: clean(decay, entity, np.asarray(time) + 1))
    assert not audit_scores(trained["pulse"], split).passed


def test_decayed_counts_of_the_next_event(
    trained: dict[str, Any], split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count right after the event that follows, faded as if it had just happened."""
    clean = Decay.at

    def leaky(decay: Decay, entity: Any, time: Any) -> Any:
        start, end = decay.view.before(entity, time)
        following = np.minimum(end, decay.view.ends[np.asarray(entity)] - 1)
        counts = clean(decay, entity, decay.view.times[np.maximum(following, 0)] + 1)
        return counts * (end > start)[..., None]

    monkeypatch.setattr(Decay, "at", leaky)
    found = audit_scores(trained["pulse"], split)
    assert found.offence is not None
    assert found.offence.startswith("the model reads rows at or after the time of a request: for user 'u")


@pytest.mark.parametrize("where", ["neighbours", "next"])
def test_neighbourhoods_that_read_on(
    trained: dict[str, Any], split: unskew.Split, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The events of neighbours, or what came right after a shared item, up to the end of their histories."""
    name = "_events" if where == "neighbours" else "_next"
    clean = getattr(Neighbourhood, name)

    def to_the_end(self: Neighbourhood, walk: Any, *time: Any) -> Any:
        view = self.log.histories
        owner = np.searchsorted(view.offsets, walk.ended - 1, "right") - 1
        return clean(self, walk._replace(ended=view.ends[owner]), *time)

    monkeypatch.setattr(Neighbourhood, name, to_the_end)
    assert not audit_scores(trained["pulse"], split).passed


@pytest.mark.parametrize("name", ["userknn", "popularity", "sasrec", "pulse"])
def test_views_that_read_the_moment_itself(
    trained: dict[str, Any], split: unskew.Split, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = Sequences.before

    def until(view: Sequences, entity: Any, time: Any, *more: Any) -> Any:
        return before(view, entity, np.asarray(time) + 1, *more)

    monkeypatch.setattr(Sequences, "before", until)
    assert not audit_scores(trained[name], split).passed


def test_exposure_that_counts_all_rows(
    trained: dict[str, Any], split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leak in nothing but the debiasing is found, too."""
    clean = PulseCatalog.scores_at_strengths

    def leaky(catalog: PulseCatalog, context: Any, strengths: Any) -> Any:
        scores = clean(catalog, context, strengths)
        return [part - debias * len(context.log) for part, debias in zip(scores, strengths, strict=True)]

    monkeypatch.setattr(PulseCatalog, "scores_at_strengths", leaky)
    assert not audit_scores(trained["pulse"], split).passed


def test_a_leave_one_out_split_cannot_be_cut(trained: dict[str, Any], split: unskew.Split) -> None:
    with pytest.raises(BadInput, match="has no one moment"):
        audit_scores(trained["popularity"], unskew.split(split.log, kind="leave-one-out"))
