"""The tags of items, and people's taste for them: how much more often than everybody a user takes items with
such tags.

A tag is a value of a feature that is a category, and a text such as `Crime|Drama` is several; numbers are no
tags. For a request of user u at time t and an item i, strictly before t:

    c(u, i, t)  the mean over the item's tags g of log((n_g + PRIOR * b_g) / (n + PRIOR) / b_g)

    n_g         how many items of the user's history have the tag, of n that have any; in the second of the
                two values of c, each counts BACK times as much as the one that came after it
    b_g         the fraction of the tag: how many events of everybody have it, over those that have any

Zero is the taste of everybody. It stands where an item has no tags, and where nobody knows the user. A tag
that the history does not have is the same for all tags, log(PRIOR / (n + PRIOR)), and only the others are
stored. Nothing belongs to a tag by its name, so tags may be new at any time. Where a log says when the values
of its features became known (`data/log/item_feed.py`), a request at t reads those of before t, and what
happened to an item before anything was known of it counts from then on.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.data.log.log import LogView
from unskew.data.log.views import PAD, EventView, Ints, Sequences, offsets_of
from unskew.data.log.vocabulary import ALWAYS, NEVER, VocabularyView

BACK = (1.0, 0.85)
PRIOR = (5.0, 2.5)  # so many items of everybody's taste are added to a history
FLOOR = 0.05  # added to counts of everybody, so that no fraction is zero
OF_TAGS = len(PRIOR)

Floats = NDArray[np.float32]


class Tags:
    """The tags of the items of one log. Those of item i are `ids[offsets[i]:offsets[i + 1]]`; a request at t
    reads those with start < t <= end, where times of features are known (`timed`)."""

    def __init__(self, log: LogView) -> None:
        self.log = log
        self._read()
        log.on_event(self._follow)

    def _read(self) -> None:
        """Read the features as they are now."""
        items = self.log.items
        self._features = items.features
        item, tag, start, end = (np.concatenate(part) for part in zip(*_spans(items), strict=True))
        order = np.lexsort((start, tag, item))
        self.ids, self.offsets = tag[order], offsets_of(item[order], len(items))
        self.start, self.end = start[order], end[order]
        self.timed = bool((start > ALWAYS).any())
        self.size = int(tag.max(initial=-1)) + 1
        # When anything was first known of each item: what happened earlier counts from then on.
        self.first = np.full(len(items), ALWAYS)
        self.first[item[order]] = NEVER
        np.minimum.at(self.first, item, start)
        for name in ("events", "tagged", "_some", "names"):
            self.__dict__.pop(name, None)

    def renew(self) -> None:
        """Read the features again, if they are others now."""
        if self.log.items.features is not self._features:
            self._read()

    def of(self, item: Ints, time: Ints) -> tuple[Ints, Ints]:
        """The tags of some items at some times, one after the other: for each tag, whose of these it is, and
        its code."""
        known = (item >= 0) & (item < len(self.offsets) - 1)
        start, end = (np.where(known, self.offsets[np.where(known, item, 0) + more], 0) for more in (0, 1))
        whose, place = self.log.histories.flat(start, end)
        if self.timed:
            is_read = (self.start[place] < time[whose]) & (time[whose] <= self.end[place])
            whose, place = whose[is_read], place[is_read]
        return whose, self.ids[place]

    def _counted_at(self, item: Ints, time: Ints) -> Ints:
        """From when on events count for the tags of their items: just before, nothing was known."""
        known = (item >= 0) & (item < len(self.first))
        return np.maximum(time, np.where(known, self.first[np.where(known, item, 0)], ALWAYS))

    def _tags_of_events(self, item: Ints, time: Ints) -> tuple[Ints, Ints, Ints]:
        """For each tag of some events: whose it is, its code, and from when on the event counts."""
        when = self._counted_at(item, time)
        event, tag = self.of(item, np.minimum(when, NEVER - 1) + 1)
        return event, tag, when[event]

    @cached_property
    def events(self) -> EventView:
        """The events of each tag: the items that have it, by time."""
        _, each = self.log.histories.everything()
        ids, times = self.log.histories.ids[each], self.log.histories.times[each]
        event, tag, when = self._tags_of_events(ids.astype(np.int64), times)
        order = np.lexsort((ids[event], when, tag))
        event, offsets = event[order], offsets_of(tag[order], self.size)
        return self.log.following(Sequences(ids[event], when[order], offsets))

    @cached_property
    def tagged(self) -> EventView:
        """All events whose items have any tag, in one sequence."""
        view = self.log.timeline
        _, each = view.everything()
        event, _, when = self._tags_of_events(view.ids[each].astype(np.int64), view.times[each])
        event, first = np.unique(event, return_index=True)
        order = np.argsort(when[first], kind="stable")
        ids = view.ids[each][event[order]]
        return self.log.following(Sequences(ids, when[first][order], np.array([0, len(event)])))

    def _follow(self, user: int, item: int, time: int) -> None:
        """An event was added to the log."""
        if item == PAD:
            for view in ("events", "tagged"):
                self.__dict__.pop(view, None)
            return
        _, tags, when = self._tags_of_events(np.array([item]), np.array([time]))
        for view, entities in (("events", tags.tolist()), ("tagged", [0] if len(tags) else [])):
            for entity in entities if view in self.__dict__ else ():
                self.__dict__[view].add(entity, item, int(when[0]))

    def fractions(self, tag: Ints, time: Ints) -> NDArray[np.float64]:
        """The fraction of each tag in what happened before each time."""
        start, end = self.events.before(tag, time)
        first, last = self.tagged.before(np.zeros_like(tag), time)
        return np.asarray((end - start + FLOOR) / (last - first + FLOOR))

    def means(self, of_tag: Floats, time: int) -> Floats:
        """The mean of something over the tags that each item has at a time; zero where it has none."""
        item, first = self._some
        means = np.zeros(len(self.log.items), np.float32)
        if len(item):
            values, weight = of_tag.take(self.ids), np.ones(len(self.ids), np.float32)
            if self.timed:
                weight = ((self.start < time) & (time <= self.end)).astype(np.float32)
                values = values * weight
            count = np.add.reduceat(weight, first)
            means[item] = np.add.reduceat(values, first) / np.maximum(count, 1)
        return means

    @cached_property
    def _some(self) -> tuple[Ints, Ints]:
        """The items that have tags, and where these begin."""
        item = np.flatnonzero(np.diff(self.offsets))
        return item, self.offsets[item]

    def explained(self, tastes: "Tastes", request: int, item: int) -> tuple[tuple[str, ...], Floats]:
        """The names of the tags of an item, and the tastes of a request for each of them, (tags, OF_TAGS).
        Their mean is the value c of the item."""
        _, tag = self.of(np.array([item]), tastes.time[[request]])
        names = tuple(self.names[code] for code in tag.tolist())
        return names, tastes.of_tags(np.full(len(tag), request), tag)

    @cached_property
    def names(self) -> list[str]:
        """The name of each tag."""
        features = self.log.items.features.values()
        return [str(name) for of in features if not of.is_number for name in of.spans[-1].to_pylist()]

    def tastes(self, time: Ints, own: Ints) -> "Tastes":
        """The tastes of requests at some times with histories `own` (requests, items), padded on the left."""
        self.renew()
        at = np.broadcast_to(time[:, None], own.shape)
        has = np.zeros(own.shape, bool)
        has.flat[np.unique(self.of(own.ravel(), at.ravel())[0])] = True
        request, place = np.nonzero(has)
        back = (has.sum(1)[:, None] - has.cumsum(1))[request, place]
        whose, tag = self.of(own[request, place], time[request])
        key, which = np.unique(request[whose] * max(self.size, 1) + tag, return_inverse=True)
        of_key, tag = key // max(self.size, 1), key % max(self.size, 1)
        fraction = self.fractions(tag, time[of_key])
        values, others = np.empty((len(key), OF_TAGS), np.float32), np.empty((len(own), OF_TAGS), np.float32)
        for column, (fading, prior) in enumerate(zip(BACK, PRIOR, strict=True)):
            counts = fading**back
            of_tag = np.bincount(which, counts[whose], minlength=len(key))
            values[:, column] = np.log1p(of_tag / (prior * fraction))
            others[:, column] = np.log(prior / (np.bincount(request, counts, minlength=len(own)) + prior))
        return Tastes(self, time, key, values, others)


class Tastes(NamedTuple):
    """The tastes of some requests."""

    tags: Tags
    time: Ints
    keys: Ints  # request * tags + tag, increasing: the tags that are in the history
    values: Floats  # (keys, OF_TAGS), what each of them adds to
    others: Floats  # (requests, OF_TAGS), the value of a tag that is not in the history

    def of_pairs(self, request: Ints, item: Ints) -> Floats:
        """The values c of some pairs, (pairs, OF_TAGS)."""
        whose, tag = self.tags.of(item, self.time[request])
        if not len(tag):
            return np.zeros((len(item), OF_TAGS), np.float32)
        found = self.of_tags(request[whose], tag)
        count = np.maximum(np.bincount(whose, minlength=len(item)), 1)
        sums = (np.bincount(whose, column, minlength=len(item)) for column in found.T)
        return np.stack([each / count for each in sums], axis=1, dtype=np.float32)

    def of_tags(self, request: Ints, tag: Ints) -> Floats:
        """The tastes of requests for single tags, (tags, OF_TAGS)."""
        found = self.others[request]
        if len(self.keys):
            wanted = request * self.tags.size + tag
            place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
            found = found + np.where((self.keys[place] == wanted)[:, None], self.values[place], np.float32(0))
        return found

    def of_request(self, request: int, weight: Floats) -> Floats:
        """The product of c and a weight for all items, in one request: a look-up per tag of an item."""
        tags = self.tags
        first, last = np.searchsorted(self.keys, [request * tags.size, (request + 1) * tags.size])
        of_tag = np.full(tags.size, self.others[request] @ weight)
        of_tag[self.keys[first:last] - request * tags.size] += self.values[first:last] @ weight
        return tags.means(of_tag, int(self.time[request]))


def _spans(items: VocabularyView) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """All pairs of an item and a tag with their times, feature by feature. Features share no tags."""
    known, nothing = 0, np.zeros(0, np.int64)
    yield nothing, nothing, nothing, nothing
    for feature in items.features.values():
        if not feature.is_number:
            item, tag, start, end, names = feature.spans
            yield item, tag + known, start, end
            known += len(names)
