"""BST: Behavior Sequence Transformer for E-commerce Recommendation in Alibaba (Chen et al., DLP-KDD 2019).

The candidate is appended to the history, one transformer block reads both, and an MLP reads all of the
block's outputs:

    z_1, ..., z_L, z_c = Block([e_1; p_L], ..., [e_L; p_1], [e_c; p_0])
    score(c) = MLP([z_1; ...; z_L; z_c])
    e_1 ... e_L  the embeddings of the history, oldest first; e_c that of the candidate
    p_k          the embedding of position k, counted back from the candidate
    [a; b]       concatenation

So the candidate changes the output at every past item, and each pair of history and candidate needs a pass of
its own. What the candidate cannot change is computed once and shared.

A catalogue is scored in blocks of candidates after one history. With 10,506 items and histories of 10 items
(MovieTweetings, one core), a list takes 80 ms, and 223 ms when nothing is shared. Larger blocks change
nothing (4,096 to 32,768 positions at once: 91, 83, 80, 81 ms): what depends on both takes 190,000
multiplications per pair, half of them in the first layer of the MLP, and that is as fast as the core is.

What was decided where the paper is silent or its reimplementations differ:

Variant    As in the paper, the candidate is inside the block, and all outputs are flattened, with those of
           padding set to zero. (DeepCTR keeps the candidate outside, Torch-RecHub reads only its position,
           and the BST of the DEPS paper takes the mean of the outputs.)
Positions  They are concatenated to items, as summaries of the paper say. Positions are counted back from the
           candidate, which is 0; the paper has the time between the two instead.
Smaller    Width 32, 4 heads instead of 8, an MLP of 256-128-64 instead of 1024-512-256. There are no
           categories and no features of the user. Attention weights are not dropped. Adam replaces Adagrad.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import AtLeast1, Dropped, Search, Settings
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known
from unskew.models.base import ClickModel, HistoryConfig
from unskew.nn.layers import Dropout, Embeddings, is_real
from unskew.nn.scoring import Catalog

TOGETHER = 1 << 13  # positions whose states a catalogue holds at once: few enough to stay in the cache


class BST(ClickModel, name="bst", paper="Chen et al., Behavior Sequence Transformer, DLP-KDD 2019"):
    """A transformer block over a history and one candidate behind it."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        history: AtLeast1 = 20
        """The number of past items of a user that the model reads: the newest ones."""
        width: Annotated[AtLeast1, Search.among(32, 64, 128)] = 32
        """The width of the transformer block: that of an item and its position beside each other."""
        place_width: AtLeast1 = 8
        """The part of this width that belongs to the position."""
        heads: AtLeast1 = 4
        """The number of attention heads."""
        inner: AtLeast1 = 64
        """The width of the feed-forward layer of the block."""
        hidden: AtLeast1 = 256
        """The width of the first hidden layer of the MLP; each of the other two is half as wide as the one
        before."""
        dropout: Dropped = 0.2
        """The fraction of activations that dropout sets to zero in the block."""

        def __post_init__(self) -> None:
            if self.place_width >= self.width:
                raise BadInput(
                    f"place_width {self.place_width}: expected less than width, {self.width}",
                    field="place_width",
                )

    config: Config
    recipe: ClassVar[Settings] = {"batch_size": 256}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width = config.width
        self.items = Embeddings(known.items, width - config.place_width)
        self.positions = nn.Parameter(torch.empty(config.history + 1, config.place_width))
        nn.init.normal_(self.positions, std=0.02)
        self.attention = CandidateAttention(width, config.heads)
        self.widen, self.narrow = nn.Linear(width, config.inner), nn.Linear(config.inner, width)
        self.after_attention, self.after_inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = Dropout(config.dropout)
        first, second, third = config.hidden, config.hidden // 2, config.hidden // 4
        self.first = nn.Linear((config.history + 1) * width, first)
        leaky = nn.LeakyReLU(inplace=True)
        self.rest = nn.Sequential(
            leaky, nn.Linear(first, second), leaky, nn.Linear(second, third), leaky, nn.Linear(third, 1)
        )

    # What depends on the history alone, on the candidate alone, and on both

    def past(self, history_BL: Tensor) -> "Past":
        """The part of the attention that depends on the histories alone."""
        B, L = history_BL.shape
        positions_BLP = self.positions[1 : L + 1].flip(0).expand(B, -1, -1)
        x_BLD = torch.cat([self.items(history_BL), positions_BLP], dim=2)
        return self.attention.past(x_BLD, is_real(history_BL))

    def candidate(self, item_BC: Tensor) -> "Candidate":
        """The part of the attention that depends on the candidates alone."""
        position_BCP = self.positions[0].expand(*item_BC.shape, -1)
        return self.attention.candidate(torch.cat([self.items(item_BC), position_BCP], dim=2))

    def states(self, past: "Past", candidate: "Candidate") -> tuple[Tensor, Tensor]:
        """The block's outputs at the past items, (B, C, L, D), zero for padding, and at the candidates, (B,
        C, D)."""
        by_past_BCLD, by_candidate_BCD = self.attention(past, candidate)
        at_past_BCLD = self._block(past.x_BLD[:, None], by_past_BCLD)
        if not bool(past.real_BL.all()):
            at_past_BCLD = at_past_BCLD.masked_fill(~past.real_BL[:, None, :, None], 0)
        return at_past_BCLD, self._block(candidate.x_BCD, by_candidate_BCD)

    def _block(self, x: Tensor, read: Tensor) -> Tensor:
        """The output of the block, given its input x and what attention has read."""
        x = self.after_attention(self.dropout(read).add_(x))
        inner = functional.leaky_relu(self.widen(x), inplace=True)
        return self.after_inner(self.dropout(self.narrow(inner)).add_(x))

    def join(self, past: "Past", candidate: "Candidate") -> Tensor:
        """The logits of all candidates of each history, (B, C)."""
        at_past_BCLD, at_candidate_BCD = self.states(past, candidate)
        flat, width = at_past_BCLD.flatten(2), self.config.width
        # Positions beyond the longest history of the batch are zero, so their weights are left out.
        of_past = self.first.weight[:, -width - flat.shape[2] : -width]
        of_candidate = self.first.weight[:, -width:]
        hidden_BCF = functional.linear(at_candidate_BCD, of_candidate, self.first.bias)
        hidden_BCF.add_(functional.linear(flat, of_past))
        return self.rest(hidden_BCF).squeeze(2)

    def forward(self, batch: Batch) -> Tensor:
        return self.join(self.past(batch.history_BL), self.candidate(batch.candidates_BC))

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        return SharingCatalog(self, len(log.items))


class Past(NamedTuple):
    """What attention makes of a history without a candidate. There are H heads of width E."""

    x_BLD: Tensor
    real_BL: Tensor
    query_BHLE: Tensor
    key_BHLE: Tensor
    value_BHLE: Tensor
    read_BHLE: Tensor  # what each past item reads from the history
    normaliser_BHL: Tensor  # the logarithm of the softmax normaliser of that attention


class Candidate(NamedTuple):
    """What attention makes of a candidate without a history. With B = 1 it serves all contexts."""

    x_BCD: Tensor
    query_BHCE: Tensor
    key_BHCE: Tensor
    value_BHCE: Tensor


class CandidateAttention(nn.Module):
    """Self-attention over a history with one candidate behind it, for many candidates at once. The attention
    among past items is computed without the candidate, which then adds one more key to it: this takes a part
    of the attention and scales the rest down."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query_key_value, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def past(self, x_BLD: Tensor, real_BL: Tensor) -> Past:
        """What depends on the history alone."""
        query, key, value = self._heads(x_BLD)
        scores_BHLL = query @ key.transpose(2, 3) * self.scale
        # An empty row attends to its padding, because attention over nothing is not a number. Nothing reads
        # the states of such a row.
        unseen_BL = ~real_BL & real_BL.any(1, keepdim=True)
        scores_BHLL = scores_BHLL.masked_fill(unseen_BL[:, None, None], -torch.inf)
        read_BHLE, normaliser_BHL = scores_BHLL.softmax(3) @ value, scores_BHLL.logsumexp(3)
        return Past(x_BLD, real_BL, query, key, value, read_BHLE, normaliser_BHL)

    def candidate(self, x_BCD: Tensor) -> Candidate:
        """What depends on the candidate alone."""
        return Candidate(x_BCD, *self._heads(x_BCD))

    def _heads(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, L, D = x_BLD.shape
        parts = self.query_key_value(x_BLD).view(B, L, 3, self.heads, D // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        return query, key, value

    def forward(self, past: Past, candidate: Candidate) -> tuple[Tensor, Tensor]:
        """What each past item reads, (B, C, L, D), and what the candidate reads, (B, C, D)."""
        by_past_BCLHE = self.read_by_past(past, candidate)
        by_candidate_BCHE = self.read_by_candidate(past, candidate)
        return self.attended(by_past_BCLHE.flatten(3)), self.attended(by_candidate_BCHE.flatten(2))

    def read_by_past(self, past: Past, candidate: Candidate) -> Tensor:
        """What each past item reads from the history and the candidate, by head, (B, C, L, H, E)."""
        scores_BHLC = past.query_BHLE @ candidate.key_BHCE.transpose(2, 3) * self.scale
        share_BHLC = torch.sigmoid(scores_BHLC - past.normaliser_BHL[..., None])
        share_BCLH = share_BHLC.permute(0, 3, 2, 1).contiguous()
        known_B1LHE = past.read_BHLE.transpose(1, 2)[:, None]
        new_BC1HE = candidate.value_BHCE.transpose(1, 2)[:, :, None]
        return torch.lerp(known_B1LHE, new_BC1HE, share_BCLH[..., None])

    def read_by_candidate(self, past: Past, candidate: Candidate) -> Tensor:
        """What the candidate reads from the history and itself, by head, (B, C, H, E)."""
        scores_BHCL = candidate.query_BHCE @ past.key_BHLE.transpose(2, 3) * self.scale
        scores_BHCL = scores_BHCL.masked_fill(~past.real_BL[:, None, None], -torch.inf)
        itself_BHC1 = (candidate.query_BHCE * candidate.key_BHCE).sum(3, keepdim=True) * self.scale
        fraction = torch.cat([scores_BHCL, itself_BHC1.expand(len(past.x_BLD), -1, -1, -1)], dim=3).softmax(3)
        return (fraction[..., :-1] @ past.value_BHLE + fraction[..., -1:] * candidate.value_BHCE).transpose(
            1, 2
        )


class SharingCatalog:
    """A catalogue in which each candidate and each history is encoded once, and only what depends on both is
    computed for every pair."""

    def __init__(self, model: BST, items: int) -> None:
        self.model, self.candidates = (
            model,
            model.candidate(torch.arange(items, device=model.positions.device)[None]),
        )

    def scores(self, context: Batch) -> Tensor:
        """The logits of all items, one context after the other."""
        return torch.cat([self._row(history_L[None]) for history_L in context.history_BL])

    def _row(self, history_1L: Tensor) -> Tensor:
        """The logits of all items after one history, (1, items)."""
        past = self.model.past(history_1L[:, history_1L.shape[1] - int(is_real(history_1L).sum()) :])
        x, *parts = self.candidates
        size = max(1, TOGETHER // (1 + past.real_BL.shape[1]))
        logits = []
        for at in range(0, x.shape[1], size):
            some = slice(at, at + size)
            candidates = Candidate(x[:, some], *(part[:, :, some] for part in parts))
            logits.append(self.model.join(past, candidates))
        return torch.cat(logits, dim=1)
