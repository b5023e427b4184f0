"""Worlds of several kinds, by name: each differs from the others in how exposure is biased and in how the
items change, and is otherwise the same.

All have 2,000 users, 200 items and 100 steps, so a user has about 10 impressions and 25 to 35 clicks; the
settings of `Simulation` make any of them larger or smaller.
"""

from dataclasses import dataclass, replace

from unskew.core.config import did_you_mean
from unskew.core.errors import BadInput
from unskew.world.equations import Simulation

COMMON = Simulation(users=2000, items=200, steps=100, impressions=0.1, shown=10.0, drift=0.5)


@dataclass(frozen=True)
class Kind:
    """A kind of world: what it is like, and its settings."""

    about: str
    settings: Simulation


KINDS: dict[str, Kind] = {
    "popularity": Kind(
        "Exposure follows popularity only, which is nothing personal.",
        replace(COMMON, history=0.0, audience=0.0),
    ),
    "bias-0": Kind(
        "Every item is shown with the same probability: a world in which there is nothing to debias.",
        replace(COMMON, bias=0.0),
    ),
    "bias-1": Kind("Exposure follows popularity, the user's history and the item's audience.", COMMON),
    "bias-2": Kind(
        "As bias-1, and twice as strong: a few items are shown nearly always, and most of them hardly ever.",
        replace(COMMON, bias=2.0),
    ),
    "trends": Kind(
        "As bias-1, but appeal rises and falls, and popularity counts recent clicks: so a part of it follows "
        "what is liked now, and to undo all of it would be wrong.",
        replace(COMMON, trend=0.7, season=100.0, recency=0.8),
    ),
    "novelty": Kind(
        "As bias-1, but half of the items are born along the way, one a step, new ones are shown more than "
        "their clicks explain, and popularity counts recent clicks.",
        replace(COMMON, born=0.5, births=1.0, novelty=3.0, young=10.0, recency=0.9),
    ),
}


def kind_named(name: str) -> Simulation:
    """The settings of a kind of world."""
    if name not in KINDS:
        raise BadInput(f"no world {name!r}{did_you_mean(name, KINDS)}; there are {', '.join(KINDS)}")
    return KINDS[name].settings
