"""What tests of the monitor share: a store with everything, and its figures by naive loops."""

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from unskew.serve import Event, Recommendation, Shown, Store

DAY = 86_400 * 10**6
WEEK = 7 * DAY
MONDAY = 1_767_571_200_000_000  # 2026-01-05 in UTC
NOW = MONDAY + 100 * WEEK
ITEMS = [f"i{n}" for n in range(25)]


class Filler:
    """Events and recommendations, drawn at random."""

    def __init__(self, seed: int, weeks: int) -> None:
        self.random, self.weeks = np.random.default_rng(seed), weeks
        self.events: list[Event] = []
        self.recommendations: list[Recommendation] = []

    def moment(self) -> int:
        return MONDAY + int(self.random.integers(0, self.weeks * 7 * 24)) * DAY // 24

    def add(self, user: str, item: str, kind: str, at: int, **more: Any) -> None:
        self.events.append(Event(f"e{len(self.events)}", user, item, kind, at, **more))

    def recommend(self, number: int) -> None:
        """A recommendation, and often what became of it."""
        random = self.random
        user, at = f"u{random.integers(12)}", self.moment()
        picked = random.choice(len(ITEMS), random.integers(1, 6), replace=False)
        shown = tuple(
            Shown(ITEMS[i], float(random.integers(1, 11)) / 10, bool(random.random() < 0.2)) for i in picked
        )
        model = random.choice(["pulse", "pulse", "fallback", "fallback:new user"])
        self.recommendations.append(Recommendation(f"r{number}", user, at, str(model), "1", shown))
        if random.random() < 0.5:
            item = shown[int(random.integers(len(shown)))].item_id
            for _ in range(int(random.integers(1, 3))):
                later = at + int(random.integers(0, 3 * DAY))
                self.add(user, item, "click", later, recommendation_id=f"r{number}", propensity=0.9)
        if random.random() < 0.2:
            self.add("u99", ITEMS[0], "purchase", at, recommendation_id=f"r{number}")
        if random.random() < 0.2:  # the store believes its own record
            self.add(
                user, shown[0].item_id, "impression", at, recommendation_id=f"r{number}", propensity=0.05
            )

    def show(self, number: int) -> None:
        """An impression that only events tell of. The propensity that one of them has is believed."""
        user, at = f"u{self.random.integers(12)}", self.moment()
        item, names = ITEMS[number], {"recommendation_id": f"x{number}"}
        self.add(user, item, "view", at, impression=(ITEMS[number + 1], item), **names)
        propensity = float(self.random.integers(1, 11)) / 10
        self.add(user, item, "impression", at + DAY, propensity=propensity, **names)
        self.add(user, item, "click", at + DAY, **names)

    def happen(self) -> None:
        """An event of any kind, without a recommendation."""
        random = self.random
        user, item = f"u{random.integers(20)}", ITEMS[int(25 * random.random() ** 2)]
        at, kind = self.moment(), str(random.choice(["click", "purchase", "view", "impression"]))
        more: dict[str, Any] = {}
        if random.random() < 0.3:
            more["impression"] = tuple(ITEMS[i] for i in random.integers(0, 25, 3))
        if random.random() < 0.3:
            more["propensity"] = float(random.integers(1, 11)) / 10
        self.add(user, item, kind, at, **more)


def filled(seed: int = 0, weeks: int = 5) -> tuple[list[Event], list[Recommendation]]:
    """Events of all kinds, in no order of time: with and without recommendations, with impressions of three
    kinds, purchases, views, clicks twice, clicks on what was recommended to others, ties."""
    filler = Filler(seed, weeks)
    for number in range(120):
        filler.recommend(number)
    for number in range(20):
        filler.show(number)
    for _ in range(150):
        filler.happen()
    return filler.events, filler.recommendations


def fill(store: Store, seed: int = 0, weeks: int = 5) -> tuple[list[Event], list[Recommendation]]:
    events, made = filled(seed, weeks)
    store.record(made)
    store.append(events)
    return events, made


def naive(events: list[Event], made: list[Recommendation], weeks: int) -> list[dict[str, Any]]:
    """The figures of each week, one event after the other."""
    positives = [event for event in events if event.type in ("click", "purchase")]
    firsts: dict[str, int] = {}
    for event in positives:
        firsts[event.item_id] = min(event.timestamp, firsts.get(event.item_id, event.timestamp))
    arrivals: dict[str, int] = {}
    for event in events:
        arrivals[event.user_id] = min(event.timestamp, arrivals.get(event.user_id, event.timestamp))
    showings = showings_of(events, made)
    clicked = {(event.user_id, _impression(event), event.item_id) for event in positives}
    found = []
    for week in range(weeks):
        low, high = MONDAY + week * WEEK, MONDAY + (week + 1) * WEEK

        def here(moment: int, low: int = low, high: int = high) -> bool:
            return low <= moment < high

        chosen = [event for event in positives if here(event.timestamp)]
        shown = {key: of for key, of in showings.items() if here(of["at"])}
        own = {key: of for key, of in shown.items() if of["recommended"]}
        lists = [each for each in made if here(each.timestamp)]
        popularity = Counter(event.item_id for event in positives if event.timestamp < low)
        catalogue = {item for item, first in firsts.items() if first < high}
        of_shown, of_clicked = [key[2] for key in shown], [event.item_id for event in chosen]
        ages = [of["at"] - firsts[key[2]] for key, of in shown.items() if firsts.get(key[2], NOW) <= of["at"]]
        weights = [1 / p for p in (_propensity(event, showings) for event in chosen) if p is not None]
        means = [np.mean([popularity[item] for item in of]) for of in (of_shown, of_clicked)]
        found.append(
            {
                "events": sum(here(event.timestamp) for event in events),
                "positives": len(chosen),
                "users": len({event.user_id for event in events if here(event.timestamp)}),
                "new_users": sum(map(here, arrivals.values())),
                "items": len(set(of_clicked)),
                "new_items": sum(map(here, firsts.values())),
                "shown": len(shown),
                "gini_shown": _gini(of_shown, catalogue),
                "gini_clicked": _gini(of_clicked, catalogue),
                "coverage_shown": len(set(of_shown) & catalogue) / len(catalogue),
                "coverage_clicked": len(set(of_clicked)) / len(catalogue),
                "lift": means[0] / means[1] if means[1] else math.nan,
                "age_shown": float(np.median(ages)) / DAY,
                "age_clicked": float(np.median([e.timestamp - firsts[e.item_id] for e in chosen])) / DAY,
                "recommendations": len(lists),
                "click_rate": float(np.mean([key in clicked for key in own])),
                "fallback": float(np.mean([each.model.startswith("fallback") for each in lists])),
                "random": float(np.mean([of["exposed"] for of in own.values()])),
                "logged": len(weights),
                "ess": sum(weights) ** 2 / sum(w * w for w in weights) / len(weights),
            }
        )
    return found


def showings_of(
    events: list[Event], made: list[Recommendation]
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """What was shown, by user, impression and item; what is known best about it comes first."""
    found: dict[tuple[str, str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for each in made:
        for item in each.items:
            key = each.user_id, each.recommendation_id, item.item_id
            found[key].append((0, each.timestamp, 0, item.propensity, item.exposed))
    for number, event in enumerate(events):
        impression = _impression(event)
        if event.type == "impression":
            said = (1, event.timestamp, number, event.propensity, False)
            found[event.user_id, impression, event.item_id].append(said)
        for item in event.impression:
            found[event.user_id, impression, item].append((2, event.timestamp, number, None, False))
    best = {key: min(all_, key=lambda each: each[:3]) for key, all_ in found.items()}
    return {
        key: {"recommended": one[0] == 0, "at": one[1], "propensity": one[3], "exposed": one[4]}
        for key, one in best.items()
    }


def _impression(event: Event) -> str:
    if event.recommendation_id is not None:
        return event.recommendation_id
    return (
        f"event {event.event_id}"
        if event.impression or event.type == "impression"
        else f"none {event.event_id}"
    )


def _propensity(event: Event, showings: dict[tuple[str, str, str], dict[str, Any]]) -> float | None:
    of = showings.get((event.user_id, _impression(event), event.item_id))
    if of is not None and of["recommended"]:
        return float(of["propensity"])
    return event.propensity if event.propensity is not None or of is None else of["propensity"]


def _gini(items: list[str], catalogue: set[str]) -> float:
    """The mean difference of all pairs, over twice the mean."""
    counts = Counter(items)
    of = [counts[item] for item in catalogue | set(items)]
    return sum(abs(a - b) for a in of for b in of) / (2 * len(of) ** 2) / (sum(of) / len(of))
