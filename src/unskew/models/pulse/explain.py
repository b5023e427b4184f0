"""Why Pulse gives an item its score: from what the network read, without a second model.

    score = base + sum of parts

The inputs of the network are divided into groups: the decayed counts of the item (`popular`), its age
(`new`), the three values of the neighbourhood, the values of a repeated item (`repeat`), and the tastes for
its tags (`tag`). `base` is the score of an item that is average in the first two and about which nothing is
known in the others, for the same user; it is the same for all items of a list.

- What enters the score linearly (tags, the linear skips) is its own part, exactly.
- The hidden layer reads the groups together. Its value is divided by the Shapley values of the groups: the
  mean, over all orders in which the groups could be added to `base`, of what each of them changes. They add
  up to the whole without a rest. With eight groups there are 256 subsets, so this is exact and costs 256 rows
  of the last layer per item.
- Of context types, the counts of the item belong to `popular`, the events of the user on the item are a group
  of their own (`context`), and so is what users with the same context events took, which is listed with the
  neighbours. Intervals between repeats belong to `repeat`.
- `debias` is -debias * (exposure of the item - exposure of an average item).
- A value of the neighbourhood is a sum over the user's items (`Neighbourhood.sources`), so its part is
  divided among them in proportion to their shares in this sum.
"""

from collections.abc import Iterator, Sequence
from math import factorial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unskew.data.log.views import Ints
from unskew.models.pulse.neighbours import Sources
from unskew.models.pulse.repeats import DUE
from unskew.models.pulse.signals import (
    HALF_LIVES,
    ITEM_FEATURES,
    NEIGHBOUR_FEATURES,
    OF_TYPE,
    SCALES,
    Requests,
)
from unskew.nn.reasons import Reason, ReasonKind

Floats = NDArray[np.floating]

MOST_ITEMS = 3  # of the user's items that are named for each listed item
TINY = 1e-5  # smaller parts are not listed: they are rounding


class ExplainedNetwork(Protocol):
    """The weights of Pulse that its scores are made of."""

    of_item: nn.Linear
    of_neighbours: nn.Linear
    last: nn.Linear
    of_exposure: nn.Linear
    exposure_last: nn.Linear
    mean_a: Tensor
    scale_a: Tensor
    scale_w: Tensor

    @property
    def item_skip(self) -> Tensor:
        """The linear weights of the values of an item."""

    @property
    def neighbour_skip(self) -> Tensor:
        """The linear weights of what is known of an item in a request."""

    @property
    def exposure_skip(self) -> Tensor:
        """The linear weights of the exposure."""

    @property
    def mean_types(self) -> Tensor:
        """The means of the values of an item by context types."""

    @property
    def scale_types(self) -> Tensor:
        """The scales of the same."""

    @property
    def scale_more(self) -> Tensor:
        """The scales of what context types and repeats say of an item in a request."""

    @property
    def more_of_item(self) -> Tensor | None:
        """The weights of the values of an item by context types."""

    @property
    def more_of_exposure(self) -> Tensor | None:
        """The same for the exposure."""

    @property
    def more_of_pair(self) -> Tensor | None:
        """The weights of what context types and repeats say of an item in a request."""

    @property
    def more_skip(self) -> Tensor | None:
        """The linear weights of the same."""

    @property
    def tag_skip(self) -> Tensor | None:
        """The weights of tastes, where tags are read."""

    def user_side(self, profile: Tensor) -> Tensor:
        """What belongs to requests alone."""


class Inputs(NamedTuple):
    """What the network read of some items in one request.

    a: the values of the items.
    profile: that of the request.
    w: what is known of each item in the neighbourhood and of its repetition.
    tags: for each item, the names of its tags and the taste for each, or nothing.
    sources: how the values of the neighbourhood are divided among the user's items.
    """

    a: Tensor
    profile: Tensor
    w: Tensor
    tags: Sequence[tuple[tuple[str, ...], Floats]]
    sources: Sources


class _Group(NamedTuple):
    """Some inputs that are added to the base together: their share of the hidden layer, and the linear
    part."""

    hidden: Tensor  # (items, hidden)
    linear: Tensor  # (items,)


@torch.no_grad()
def explain(network: ExplainedNetwork, inputs: Inputs, debias: float) -> list[tuple[Reason, ...]]:
    """The reasons of some items of one request, for each item the largest parts first, after its base."""
    a, types = inputs.a[:, :ITEM_FEATURES], inputs.a[:, ITEM_FEATURES:]
    a, types = (a - network.mean_a) / network.scale_a, _standardised(network, types)
    w, more = inputs.w[:, :NEIGHBOUR_FEATURES] / network.scale_w, inputs.w[:, NEIGHBOUR_FEATURES:]
    groups = _groups(network, a, w)
    if network.more_of_item is not None:
        groups[0] = groups[0]._replace(hidden=groups[0].hidden + types @ network.more_of_item)
    groups = _with_more(network, groups, more)
    start = network.of_item.bias + network.user_side(inputs.profile)
    parts, base = _shapley(start, groups, network.last.weight[0])
    exposure = _exposure(network, a)
    if network.more_of_exposure is not None:
        exposure = exposure + types @ network.more_of_exposure
    average = float(_exposure(network, torch.zeros_like(a[:1]))[0])
    least_known = float(base) - debias * average
    of_exposure = (-debias * (exposure - average)).tolist()
    found = []
    for row in range(len(a)):
        reasons = [Reason(ReasonKind.DEBIAS, of_exposure[row]), *_item_reasons(a[row], parts[:, row])]
        neighbours = parts[2 : 2 + len(SCALES), row]
        repeat, through, own = (*parts[2 + len(SCALES) :, row].tolist(), 0.0, 0.0)[:3]
        reasons += _neighbour_reasons(neighbours, inputs.sources, row, through)
        reasons += [Reason(ReasonKind.REPEAT, repeat), Reason(ReasonKind.CONTEXT, own)]
        reasons += _tag_reasons(network, *inputs.tags[row])
        kept = sorted((each for each in reasons if abs(each.part) > TINY), key=lambda each: -abs(each.part))
        found.append((Reason(ReasonKind.BASE, least_known), *kept))
    return found


def _standardised(network: ExplainedNetwork, types: Tensor) -> Tensor:
    return (types - network.mean_types) / network.scale_types


def _with_more(network: ExplainedNetwork, groups: list[_Group], more: Tensor) -> list[_Group]:
    """The groups with what context types and repeats say of each item in the request: intervals belong to the
    last group, and two more follow it, what users with the same context events took, and the user's own
    events."""
    size = more.shape[1]
    if network.more_of_pair is None or network.more_skip is None or not size:
        return groups
    more = more / network.scale_more[:size]
    place, of_types = torch.arange(size, device=more.device), len(network.more_of_pair) - DUE
    is_through = (place < of_types) & (place % OF_TYPE < len(SCALES))
    repeats, through, own = (
        _Group(
            (more * some) @ network.more_of_pair[:size],
            (more * some) @ network.more_skip[:size],
        )
        for some in (place >= of_types, is_through, (place < of_types) & ~is_through)
    )
    last = _Group(groups[-1].hidden + repeats.hidden, groups[-1].linear + repeats.linear)
    return [*groups[:-1], last, through, own]


def _groups(network: ExplainedNetwork, a: Tensor, w: Tensor) -> list[_Group]:
    """Counts, age, each value of the neighbourhood, and repetition."""
    last = a.shape[1] - 1
    of_items = [(a, slice(0, last)), (a, slice(last, last + 1))]
    of_requests = [(w, slice(place, place + 1)) for place in range(len(SCALES))]
    of_requests.append((w, slice(len(SCALES), w.shape[1])))
    sides = (
        (of_items, network.of_item.weight, network.item_skip),
        (of_requests, network.of_neighbours.weight, network.neighbour_skip),
    )
    return [
        _Group(values[:, some] @ weight[:, some].T, values[:, some] @ skip[some])
        for groups, weight, skip in sides
        for values, some in groups
    ]


def _shapley(start: Tensor, groups: Sequence[_Group], last: Tensor) -> tuple[Tensor, Tensor]:
    """The part of each group in the score of each item, (groups, items), and the score without any group."""
    many = len(groups)
    hidden = torch.stack([group.hidden for group in groups])
    subsets = (
        torch.arange(1 << many, device=hidden.device)[:, None] >> torch.arange(many, device=hidden.device) & 1
    )  # (subsets, groups)
    sums = torch.einsum("sg,gih->sih", subsets.to(hidden.dtype), hidden) + start
    values = torch.relu(sums) @ last  # (subsets, items)
    sizes = subsets.sum(1)
    weights = [factorial(size) * factorial(many - size - 1) / factorial(many) for size in range(many)]
    parts = []
    for number, group in enumerate(groups):
        without = torch.nonzero(subsets[:, number] == 0)[:, 0]
        gains = values[without + (1 << number)] - values[without]
        weight = gains.new_tensor([weights[size] for size in sizes[without].tolist()])
        parts.append(weight @ gains + group.linear)
    return torch.stack(parts), values[0, 0] if values.shape[1] else values.new_zeros(())


def _exposure(network: ExplainedNetwork, a: Tensor) -> Tensor:
    hidden = torch.relu(network.of_exposure(a))
    return network.exposure_last(hidden).squeeze(-1) + a @ network.exposure_skip


def _item_reasons(a: Tensor, parts: Tensor) -> Iterator[Reason]:
    """Counts and age of one item. The half-life is that of the count that deviates most in the direction of
    the part."""
    popular, new = float(parts[0]), float(parts[1])
    counts = a[:-1] if popular >= 0 else -a[:-1]
    yield Reason(ReasonKind.POPULAR, popular, days=HALF_LIVES[int(counts.argmax())])
    yield Reason(ReasonKind.NEW, new)


def _neighbour_reasons(parts: Tensor, sources: Sources, row: int, through: float) -> list[Reason]:
    """The parts of the neighbourhood, divided among the user's items.

    through: the part of what users with the same context events took.
    """
    shares = sources.shares[row]  # (own items, values)
    whole = shares.sum(0)
    known = whole > 0
    of_each = (shares[:, known] / whole[known]) @ parts.double().cpu().numpy()[known]
    rest = through + float(parts.sum()) - float(of_each.sum())
    order = np.argsort(-np.abs(of_each), kind="stable")
    named = [
        Reason(ReasonKind.NEIGHBOURS, float(of_each[place]), item=int(sources.own[place]))
        for place in order[:MOST_ITEMS]
    ]
    return [*named, Reason(ReasonKind.NEIGHBOURS, rest + float(of_each[order[MOST_ITEMS:]].sum()))]


def _tag_reasons(network: ExplainedNetwork, names: tuple[str, ...], tastes: Floats) -> list[Reason]:
    """The part of each tag of one item: the mean over its tags is a sum."""
    if network.tag_skip is None or not names:
        return []
    parts = tastes @ network.tag_skip.cpu().numpy() / len(names)
    return [Reason(ReasonKind.TAG, float(part), tag=name) for name, part in zip(names, parts, strict=True)]


def known_of(read: Requests, row: int, items: Ints) -> Floats:
    """What is known of some items in one of the requests."""
    return read.of_pairs(np.full(len(items), row), items)
