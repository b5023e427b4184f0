"""BST: Behavior Sequence Transformer for E-commerce Recommendation in Alibaba (Chen et al., DLP-KDD 2019).

The candidate is put behind the history, one transformer block reads both, and a tower reads all of its
outputs. So the candidate changes what every past item becomes, and each (history, candidate) is a pass of its
own; what it cannot change is shared.

Variant    the paper's: the candidate inside the block, all outputs flattened, those of padding zeroed.
           (DeepCTR keeps it outside, Torch-RecHub reads only its place, and DEPS' BST means over outputs.)
Places     concatenated to items, as summaries of the paper say. They are numbers counted from the candidate,
           0, to the past: the paper has the time between the two, which a batch does not know.
Smaller    rows of 32, 4 heads for 8, a tower of 256-128-64 for 1024-512-256; no categories, no features of
           the user; attention weights are not dropped; Adam for Adagrad.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.catalog import Catalog
from unskew.config import AtLeast1, Dropped
from unskew.data.batch import Batch
from unskew.data.log import Log
from unskew.data.split import Known
from unskew.layers import Dropout, Embeddings, is_real
from unskew.losses import weighted_mean
from unskew.models.base import HistoryConfig, Phase, Recommender, Stage

TOGETHER = 1 << 13  # places of a catalogue whose states are held at once: they stay in the cache


class BST(Recommender, name="bst", paper="Chen et al., Behavior Sequence Transformer, DLP-KDD 2019"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        history: AtLeast1 = 20
        """Past items of a user that the model reads, the newest."""
        width: AtLeast1 = 32
        """Width of the block: an item and its place beside each other."""
        place_width: AtLeast1 = 8
        """How much of it the place has."""
        heads: AtLeast1 = 4
        """Heads of the attention."""
        inner: AtLeast1 = 64
        """Width of the feed-forward part of the block."""
        hidden: AtLeast1 = 256
        """Width of the tower's first hidden layer; each of the two others is half as wide as the one
        before."""
        dropout: Dropped = 0.2
        """Share of activations dropped in the block."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {"batch_size": 256}

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

    # What belongs to a history, what belongs to a candidate, and what only the two have

    def past(self, history_BL: Tensor) -> "Past":
        B, L = history_BL.shape
        places_BLP = self.positions[1 : L + 1].flip(0).expand(B, -1, -1)
        return self.attention.past(
            torch.cat([self.items(history_BL), places_BLP], dim=2), is_real(history_BL)
        )

    def candidate(self, item_BC: Tensor) -> "Candidate":
        return self.attention.candidate(
            torch.cat([self.items(item_BC), self.positions[0].expand(*item_BC.shape, -1)], dim=2)
        )

    def states(self, past: "Past", candidate: "Candidate") -> tuple[Tensor, Tensor]:
        """The block's outputs at the past items, (B, C, L, D), zero for nobody; and at the candidate, (B, C,
        D)."""
        by_past_BCLD, by_candidate_BCD = self.attention(past, candidate)
        at_past_BCLD = self._block(past.x_BLD[:, None], by_past_BCLD)
        if not bool(past.real_BL.all()):
            at_past_BCLD = at_past_BCLD.masked_fill(~past.real_BL[:, None, :, None], 0)
        return at_past_BCLD, self._block(candidate.x_BCD, by_candidate_BCD)

    def _block(self, x: Tensor, read: Tensor) -> Tensor:
        x = self.after_attention(self.dropout(read).add_(x))
        inner = functional.leaky_relu(self.widen(x), inplace=True)
        return self.after_inner(self.dropout(self.narrow(inner)).add_(x))

    def join(self, past: "Past", candidate: "Candidate") -> Tensor:
        at_past_BCLD, at_candidate_BCD = self.states(past, candidate)
        flat, width = at_past_BCLD.flatten(2), self.config.width
        # Who is not in the longest history is zero in all of them, and need not be multiplied.
        of_past, of_candidate = (
            self.first.weight[:, -width - flat.shape[2] : -width],
            self.first.weight[:, -width:],
        )
        hidden_BCF = functional.linear(at_candidate_BCD, of_candidate, self.first.bias).add_(
            functional.linear(flat, of_past)
        )
        return self.rest(hidden_BCF).squeeze(2)

    def forward(self, batch: Batch) -> Tensor:
        return self.join(self.past(batch.history_BL), self.candidate(batch.candidates_BC))

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return SharingCatalog(self, len(log.items))

    # How it learns

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        return (
            Stage(
                "train", (Phase("clicks", "pairs", self.click_loss, self.parameters),), rounds, validated=True
            ),
        )

    def click_loss(self, batch: Batch) -> Tensor:
        terms_BC = functional.binary_cross_entropy_with_logits(self(batch), batch.labels_BC, reduction="none")
        return weighted_mean(terms_BC, batch.weight_BC)


class Past(NamedTuple):
    """A history before any candidate is there. H heads of width E."""

    x_BLD: Tensor
    real_BL: Tensor
    query_BHLE: Tensor
    key_BHLE: Tensor
    value_BHLE: Tensor
    read_BHLE: Tensor  # what each past item finds in the history ...
    normaliser_BHL: Tensor  # ... and the logarithm of the sum that its attention was divided by


class Candidate(NamedTuple):
    """A candidate before any history is there. With B = 1 the same for all contexts."""

    x_BCD: Tensor
    query_BHCE: Tensor
    key_BHCE: Tensor
    value_BHCE: Tensor


class CandidateAttention(nn.Module):
    """Self-attention of a history with one candidate behind it, for many candidates.

    One more key changes an attention that is known without it by little: it takes a share, and leaves the
    rest as it was.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query_key_value, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def past(self, x_BLD: Tensor, real_BL: Tensor) -> Past:
        query, key, value = self._heads(x_BLD)
        scores_BHLL = query @ key.transpose(2, 3) * self.scale
        # A row of nobody looks at its padding: attention over nothing is not a number. Its states are never
        # read.
        unseen_BL = ~real_BL & real_BL.any(1, keepdim=True)
        scores_BHLL = scores_BHLL.masked_fill(unseen_BL[:, None, None], -torch.inf)
        return Past(
            x_BLD, real_BL, query, key, value, scores_BHLL.softmax(3) @ value, scores_BHLL.logsumexp(3)
        )

    def candidate(self, x_BCD: Tensor) -> Candidate:
        return Candidate(x_BCD, *self._heads(x_BCD))

    def _heads(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            self.query_key_value(x_BLD)
            .view(*x_BLD.shape[:2], 3, self.heads, x_BLD.shape[2] // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        return query, key, value

    def forward(self, past: Past, candidate: Candidate) -> tuple[Tensor, Tensor]:
        """What each past item finds, (B, C, L, D), and what the candidate finds, (B, C, D)."""
        by_past_BCLHE, by_candidate_BCHE = (
            self.read_by_past(past, candidate),
            self.read_by_candidate(past, candidate),
        )
        return self.attended(by_past_BCLHE.flatten(3)), self.attended(by_candidate_BCHE.flatten(2))

    def read_by_past(self, past: Past, candidate: Candidate) -> Tensor:
        """(B, C, L, H, E)"""
        scores_BHLC = past.query_BHLE @ candidate.key_BHCE.transpose(2, 3) * self.scale
        share_BCLH = (
            torch.sigmoid(scores_BHLC - past.normaliser_BHL[..., None]).permute(0, 3, 2, 1).contiguous()
        )
        known_B1LHE, new_BC1HE = (
            past.read_BHLE.transpose(1, 2)[:, None],
            candidate.value_BHCE.transpose(1, 2)[:, :, None],
        )
        return torch.lerp(known_B1LHE, new_BC1HE, share_BCLH[..., None])

    def read_by_candidate(self, past: Past, candidate: Candidate) -> Tensor:
        """(B, C, H, E)"""
        scores_BHCL = candidate.query_BHCE @ past.key_BHLE.transpose(2, 3) * self.scale
        scores_BHCL = scores_BHCL.masked_fill(~past.real_BL[:, None, None], -torch.inf)
        itself_BHC1 = (candidate.query_BHCE * candidate.key_BHCE).sum(3, keepdim=True) * self.scale
        share = torch.cat([scores_BHCL, itself_BHC1.expand(len(past.x_BLD), -1, -1, -1)], dim=3).softmax(3)
        return (share[..., :-1] @ past.value_BHLE + share[..., -1:] * candidate.value_BHCE).transpose(1, 2)


class SharingCatalog:
    """All candidates once, each history once, and of the two together only what they have together."""

    def __init__(self, model: BST, items: int) -> None:
        self.model, self.candidates = model, model.candidate(torch.arange(items)[None])

    def scores(self, context: Batch) -> Tensor:
        return torch.cat(
            [self._row(context.part(slice(at, at + 1)).history_BL) for at in range(len(context.user_B))]
        )

    def _row(self, history_1L: Tensor) -> Tensor:
        past = self.model.past(history_1L[:, history_1L.shape[1] - int(is_real(history_1L).sum()) :])
        x, *parts = self.candidates
        size = max(1, TOGETHER // (1 + past.real_BL.shape[1]))
        some = (slice(at, at + size) for at in range(0, x.shape[1], size))
        return torch.cat(
            [
                self.model.join(past, Candidate(x[:, here], *(whole[:, :, here] for whole in parts)))
                for here in some
            ],
            dim=1,
        )
