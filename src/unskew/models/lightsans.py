"""LightSANs: Lighter and Better, Low-Rank Decomposed Self-Attention Networks for Next-Item Recommendation
(Fan et al., SIGIR 2021).

Each item of a history attends to a few interests, which are pooled from all items, instead of to all items. A
second attention depends on the positions alone:

    K' = pool(K),  V' = pool(V),    pool(H) = softmax(H Theta)^T H
    S  = softmax(Q K'^T / sqrt(d)) V' + softmax(P_Q P_K^T / sqrt(d)) V
    score(c) = <state at the newest item, e_c>

    Q, K, V   the queries, keys and values of the items
    Theta     learned, (d, k), one for keys and one for values: the k interests are weighted means of items
    P_Q, P_K  the queries and keys of the positions
    e_c       the embedding of candidate c

Pooling mixes all positions, so every prefix of a history needs a pass of its own.

What was decided where the paper is silent or its code differs:

Axis       The formula normalises attention over what is attended to, and so does this. The authors' code and
           RecBole normalise over the queries; `softmax_axis="query"` does that, too.
Mask       Padding is not pooled, not attended to, and no query. (Their code masks nothing.)
Positions  They are never added to items. They are counted back from the newest item, 0, where the state is
           read. Their logits are scaled once, not twice.
Start      A learned vector answers for an empty history. States are added to it, which changes nothing,
           because a state has a bias.
Simpler    Attention weights are not dropped.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import AtLeast1, Dropped, Layers, Search, Settings, Width
from unskew.data.batches.batch import Batch
from unskew.data.log.split import Known
from unskew.models.base import DotProduct, HistoryConfig
from unskew.nn.layers import Dropout, Embeddings, in_groups, is_real
from unskew.nn.losses import cross_entropy, divisor
from unskew.nn.phases import Phase

DEVIATION = 0.02  # the standard deviation of the initial embeddings

Axis = Literal["interest", "query"]


class LightSANs(DotProduct, name="lightsans", paper="Fan et al., LightSANs, SIGIR 2021"):
    """A transformer whose items attend to a few pooled interests."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: Width = 64
        """The width of embeddings and hidden states (d)."""
        layers: Layers = 2
        """The number of transformer blocks."""
        heads: AtLeast1 = 2
        """The number of attention heads of each block."""
        inner: AtLeast1 = 256
        """The width of the feed-forward layer of a block."""
        interests: Annotated[AtLeast1, Search.among(5, 10, 15, 20)] = 5
        """The number of interests that a history is pooled into (k). The default is a tenth of the default
        history."""
        dropout: Dropped = 0.5
        """The fraction of activations that dropout sets to zero."""
        softmax_axis: Axis = "interest"
        """Whether attention is normalised over what is attended to (`interest`) or over the queries
        (`query`), as in RecBole."""

    config: Config
    is_exportable = True
    knows_by = ("items",)
    recipe: ClassVar[Settings] = {"learning_rate": 3e-3, "batch_size": 1024}
    searched: ClassVar[dict[str, Search]] = {"learning_rate": Search(3e-4, 1e-2, log=True)}

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
        return in_groups(batch.history_BL, self.read_histories)

    def read_histories(self, ids_BL: Tensor) -> Tensor:
        """The state at the newest item, (B, D); the learned start for an empty history."""
        L, real_BL = ids_BL.shape[1], is_real(ids_BL)
        if not L:
            return self.start.expand(len(ids_BL), -1)
        x_BLD, positions_LD = self.dropout(self.norm(self.items(ids_BL))), self.positions[:L].flip(0)
        empty_B1 = ~real_BL.any(1, keepdim=True)
        # An empty row attends to its padding, because attention over nothing is not a number.
        seen_BL = None if bool(real_BL.all()) else real_BL | empty_B1
        for block in self.blocks[:-1]:
            x_BLD = block(x_BLD, positions_LD, seen_BL, asking=L)
        # Of the last block, only the state at the newest position is needed.
        state_BD = self.blocks[-1](x_BLD, positions_LD, seen_BL, asking=1).squeeze(1)
        return self.start + torch.where(empty_B1, 0, state_BD)

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("next item", "positives", self.next_item_loss, self.parameters, negatives=0),)

    def next_item_loss(self, batch: Batch) -> Tensor:
        """The mean cross-entropy of the clicked items among all items."""
        weight_B = None if batch.weight_BC is None else batch.weight_BC[:, 0]
        target_B, states_BD = batch.candidates_BC[:, 0], self.context(batch)
        total = cross_entropy(states_BD, self.items, target_B, weight_B, offset=batch.offset)
        return total / divisor(len(batch.user_B))


class Block(nn.Module):
    """A block of attention to interests, attention to positions, and a feed-forward part. It normalises after
    the attentions and after the feed-forward part."""

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

    def forward(self, x_BLD: Tensor, positions_LD: Tensor, real_BL: Tensor | None, asking: int) -> Tensor:
        """The new states of the newest positions, as many as are asking, (B, asking, D), from the states of
        all positions and the embeddings of positions. Without `real_BL`, none of them is padding."""
        # Normalising over queries needs all of them.
        queries = asking if self.axis == "interest" else x_BLD.shape[1]
        of_items_BQD = self._items(x_BLD, real_BL, queries)
        read_BQD = (of_items_BQD + self._positions(x_BLD, positions_LD, real_BL, queries))[:, -asking:]
        x_BLD = self.after_attention(x_BLD[:, -asking:] + self.dropout(self.attended(read_BQD)))
        inner = functional.gelu(self.widen(x_BLD))
        return self.after_inner(x_BLD + self.dropout(self.narrow(inner)))

    def _items(self, x_BLD: Tensor, real_BL: Tensor | None, queries: int) -> Tensor:
        """What each query reads from the interests, (B, Q, D)."""
        of_query, of_key, of_value = self.query_key_value.weight.chunk(3)
        biases = self.query_key_value.bias.chunk(3)
        # Items are pooled first and projected then, which takes k projections instead of L. The result is the
        # same because the weights of a pool sum to one, and a bias does not change these weights.
        logits_BLK = x_BLD @ torch.cat([of_key.T @ self.theta_key, of_value.T @ self.theta_value], dim=1)
        for_keys_BKD, for_values_BKD = pooled(x_BLD, logits_BLK, real_BL).chunk(2, dim=1)
        query = self._by_head(functional.linear(x_BLD[:, -queries:], of_query, biases[0]))
        key = self._by_head(functional.linear(for_keys_BKD, of_key, biases[1]))
        value = self._by_head(functional.linear(for_values_BKD, of_value, biases[2]))
        scores_BHQK = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
        looking = None if real_BL is None else real_BL[:, None, -queries:, None]
        return (attention(scores_BHQK, self.axis, looking) @ value).transpose(1, 2).flatten(2)

    def _positions(self, x_BLD: Tensor, positions_LD: Tensor, real_BL: Tensor | None, queries: int) -> Tensor:
        """What each query reads by position, (B, Q, D). Without padding, all rows have the same attention."""
        parts = self.place_query_key(self.of_places(positions_LD)).view(len(positions_LD), 2, self.heads, -1)
        query, key = parts.permute(1, 2, 0, 3)
        scores_HQL = query[:, -queries:] @ key.transpose(1, 2) * query.shape[2] ** -0.5
        of_value, bias = self.query_key_value.weight.chunk(3)[2], self.query_key_value.bias.chunk(3)[2]
        value_BLHE = functional.linear(x_BLD, of_value, bias).view(*x_BLD.shape[:2], self.heads, -1)
        if real_BL is None:
            return torch.einsum("hql,blhe->bqhe", attention(scores_HQL, self.axis), value_BLHE).flatten(2)
        looking, looked_at = real_BL[:, None, -queries:, None], real_BL[:, None, None]
        weight_BHQL = attention(scores_HQL, self.axis, looking, looked_at)
        return torch.einsum("bhql,blhe->bqhe", weight_BHQL, value_BLHE).flatten(2)

    def _by_head(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.view(*x_BLD.shape[:2], self.heads, -1).transpose(1, 2)


def pooled(x_BLD: Tensor, logits_BLK: Tensor, real_BL: Tensor | None) -> Tensor:
    """Means of the real positions with the weights softmax(logits), (B, K, D)."""
    if real_BL is not None:
        logits_BLK = logits_BLK.masked_fill(~real_BL[..., None], -torch.inf)
    return logits_BLK.softmax(1).transpose(1, 2) @ x_BLD


def attention(
    scores: Tensor, axis: Axis, looking: Tensor | None = None, looked_at: Tensor | None = None
) -> Tensor:
    """Attention weights from scores (..., queries, keys), among real positions only, normalised over keys
    (`interest`) or queries (`query`). `looking` and `looked_at` say which queries and which keys are real;
    None is all of them."""
    over, other = (looked_at, looking) if axis == "interest" else (looking, looked_at)
    if over is not None:
        scores = scores.masked_fill(~over, -torch.inf)
    weights = scores.softmax(-1 if axis == "interest" else -2)
    return weights if other is None else weights * other
