"""LightSANs: Lighter and Better, Low-Rank Decomposed Self-Attention Networks for Next-Item Recommendation
(Fan et al., SIGIR 2021).

Each item of a history looks at a few interests, pooled from all items, instead of at all items; where items
stand is a second attention that knows nothing of the items. Pooling mixes all places, so every prefix of a
history is a pass of its own.

Axis       the formula normalises over what is looked at, and so do we; the authors' code and RecBole
           normalise over those who look. `softmax_axis="query"` does that, too.
Mask       everything: padding is not pooled, not looked at, and no query. (Their code masks nothing.)
Positions  never added to items; counted from the newest, 0, where the answer is read; their logits are scaled
           once, not twice.
Beginning  a learned vector answers for an empty history; a state is added to it, which changes nothing, since
           a state has a bias.
Simpler    attention weights are not dropped.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.config import AtLeast1, Dropped
from unskew.data.batch import Batch
from unskew.data.split import Known
from unskew.layers import Dropout, Embeddings, in_groups, is_real
from unskew.losses import cross_entropy
from unskew.models.base import DotProduct, HistoryConfig, Phase, Stage

DEVIATION = 0.02  # of what is drawn at the start

Axis = Literal["interest", "query"]


class LightSANs(DotProduct, name="lightsans", paper="Fan et al., LightSANs, SIGIR 2021"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: AtLeast1 = 64
        """Width of embeddings and states (d)."""
        layers: AtLeast1 = 2
        """Blocks."""
        heads: AtLeast1 = 2
        """Heads of each attention."""
        inner: AtLeast1 = 256
        """Width of the feed-forward part of a block."""
        interests: AtLeast1 = 5
        """Interests that a history is pooled into (k), a tenth of its length."""
        dropout: Dropped = 0.5
        """Share of activations dropped."""
        softmax_axis: Axis = "interest"
        """Attention is normalised over what is looked at (interest), or over those who look (query), as
        RecBole does."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {"learning_rate": 3e-3, "batch_size": 1024}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width = config.width
        self.items = Embeddings(known.items, width, DEVIATION)
        self.positions = nn.Parameter(torch.empty(config.history, width))
        nn.init.normal_(self.positions, std=DEVIATION)
        self.start = nn.Parameter(torch.zeros(width))
        self.norm, self.dropout = nn.LayerNorm(width), Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))

    def context(self, batch: Batch) -> Tensor:
        return in_groups(batch.history_BL, self._newest)

    def _newest(self, ids_BL: Tensor) -> Tensor:
        """The state at the newest item, (B, D)."""
        L, real_BL = ids_BL.shape[1], is_real(ids_BL)
        if not L:
            return self.start.expand(len(ids_BL), -1)
        x_BLD, places_LD = self.dropout(self.norm(self.items(ids_BL))), self.positions[:L].flip(0)
        empty_B1 = ~real_BL.any(1, keepdim=True)
        seen_BL = (
            None if bool(real_BL.all()) else real_BL | empty_B1
        )  # attention over nothing is not a number
        for block in self.blocks[:-1]:
            x_BLD = block(x_BLD, places_LD, seen_BL, asking=L)
        state_BD = self.blocks[-1](x_BLD, places_LD, seen_BL, asking=1).squeeze(
            1
        )  # nobody reads the other places
        return self.start + torch.where(empty_B1, 0, state_BD)

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        phase = Phase("next item", "positives", self.next_item_loss, self.parameters, negatives=0)
        return (Stage("train", (phase,), rounds, validated=True),)

    def next_item_loss(self, batch: Batch) -> Tensor:
        weight_B = None if batch.weight_BC is None else batch.weight_BC[:, 0]
        return cross_entropy(
            self.context(batch), self.items.table(), batch.candidates_BC[:, 0], weight_B
        ) / len(batch.user_B)


class Block(nn.Module):
    """Low-rank attention to items, attention to places, and a feed-forward part; normalised after each."""

    def __init__(self, config: LightSANs.Config) -> None:
        super().__init__()
        width, self.heads, self.axis = config.width, config.heads, config.softmax_axis
        self.query_key_value, self.place_query_key = nn.Linear(width, 3 * width), nn.Linear(width, 2 * width)
        self.theta_key, self.theta_value = (
            nn.Parameter(torch.empty(width, config.interests)) for _ in range(2)
        )
        for theta in (self.theta_key, self.theta_value):
            nn.init.normal_(theta, std=DEVIATION)
        self.attended = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, config.inner), nn.Linear(config.inner, width)
        self.of_places, self.after_attention, self.after_inner = (nn.LayerNorm(width) for _ in range(3))
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BLD: Tensor, places_LD: Tensor, real_BL: Tensor | None, asking: int) -> Tensor:
        """States at the newest places, as many as are asking."""
        queries = (
            asking if self.axis == "interest" else x_BLD.shape[1]
        )  # who is normalised with others needs them all
        read_BQD = (self._items(x_BLD, real_BL, queries) + self._places(x_BLD, places_LD, real_BL, queries))[
            :, -asking:
        ]
        x_BLD = self.after_attention(x_BLD[:, -asking:] + self.dropout(self.attended(read_BQD)))
        inner = functional.gelu(self.widen(x_BLD))
        return self.after_inner(x_BLD + self.dropout(self.narrow(inner)))

    def _items(self, x_BLD: Tensor, real_BL: Tensor | None, queries: int) -> Tensor:
        """What each query finds in the interests, (B, Q, D)."""
        (of_query, of_key, of_value), biases = (
            self.query_key_value.weight.chunk(3),
            self.query_key_value.bias.chunk(3),
        )
        # The weights of a pool sum to one, so items are pooled first and projected then: k rows, not L. A
        # bias does not move them.
        logits_BLK = x_BLD @ torch.cat([of_key.T @ self.theta_key, of_value.T @ self.theta_value], dim=1)
        for_keys_BKD, for_values_BKD = pooled(x_BLD, logits_BLK, real_BL).chunk(2, dim=1)
        query = self._by_head(functional.linear(x_BLD[:, -queries:], of_query, biases[0]))
        key = self._by_head(functional.linear(for_keys_BKD, of_key, biases[1]))
        value = self._by_head(functional.linear(for_values_BKD, of_value, biases[2]))
        scores_BHQK = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
        looking = None if real_BL is None else real_BL[:, None, -queries:, None]
        return (attention(scores_BHQK, self.axis, looking) @ value).transpose(1, 2).flatten(2)

    def _places(self, x_BLD: Tensor, places_LD: Tensor, real_BL: Tensor | None, queries: int) -> Tensor:
        """What each query finds at the places around it, (B, Q, D). Without padding one map serves the whole
        batch."""
        query, key = (
            self.place_query_key(self.of_places(places_LD))
            .view(len(places_LD), 2, self.heads, -1)
            .permute(1, 2, 0, 3)
        )
        scores_HQL = query[:, -queries:] @ key.transpose(1, 2) * query.shape[2] ** -0.5
        value_BLHE = functional.linear(
            x_BLD, self.query_key_value.weight.chunk(3)[2], self.query_key_value.bias.chunk(3)[2]
        )
        value_BLHE = value_BLHE.view(*x_BLD.shape[:2], self.heads, -1)
        if real_BL is None:
            return torch.einsum("hql,blhe->bqhe", attention(scores_HQL, self.axis), value_BLHE).flatten(2)
        weight_BHQL = attention(
            scores_HQL, self.axis, real_BL[:, None, -queries:, None], real_BL[:, None, None]
        )
        return torch.einsum("bhql,blhe->bqhe", weight_BHQL, value_BLHE).flatten(2)

    def _by_head(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.view(*x_BLD.shape[:2], self.heads, -1).transpose(1, 2)


def pooled(x_BLD: Tensor, logits_BLK: Tensor, real_BL: Tensor | None) -> Tensor:
    """Weighted means over places, (B, K, D)."""
    if real_BL is not None:
        logits_BLK = logits_BLK.masked_fill(~real_BL[..., None], -torch.inf)
    return logits_BLK.softmax(1).transpose(1, 2) @ x_BLD


def attention(
    scores: Tensor, axis: Axis, looking: Tensor | None = None, looked_at: Tensor | None = None
) -> Tensor:
    """Weights of scores (..., queries, keys), normalised over keys (interest) or over queries (query), among
    those that are there."""
    over, other = (looked_at, looking) if axis == "interest" else (looking, looked_at)
    if over is not None:
        scores = scores.masked_fill(~over, -torch.inf)
    weights = scores.softmax(-1 if axis == "interest" else -2)
    return weights if other is None else weights * other
