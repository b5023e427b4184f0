"""How `exposure` is fitted: Newton's method for what is not personal, Adam for the rest, and a line that
calibrates the two on held-out training impressions. The model and its symbols are explained in
`exposure.py`."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unskew.core.errors import BadInput
from unskew.data.log.split import Ids, Known, Split
from unskew.data.log.views import PAD, Ints, Sequences
from unskew.propensity.impressions import (
    ALL,
    DRAWN,
    Floats,
    Impressions,
    ItemPast,
    Moments,
    Pairs,
    blocks,
    few_enough,
    normalisers,
    pairs_of,
    shown_before,
    sigmoid,
    spread_items,
    training_impressions,
)

RECENT, FADING, STRENGTH = 20, 0.9, 3.0  # how much of histories and audiences is read, and how it counts
HALF_LIVES = 1 / 4, 1 / 32  # of the training set
HELD_OUT = 0.15  # the fraction of the training impressions on which the fit is stopped and calibrated
BLOCK = 20_000  # pairs of a step
DRAWN_FIRST, DEVIATION = ("item_Q", "user_G"), 0.1  # which vectors begin at random numbers; the rest at zero
PATIENCE = 3  # epochs without a gain
BIAS_STEPS = 4
NEWTON = 50  # steps at most, each of which changes no number by more than one


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """How `exposure` is fitted."""

    width: int = 16
    """The width of the personal vectors."""
    epochs: int = 12
    """The largest number of epochs of the personal terms."""
    learning_rate: float = 1e-2
    """The learning rate of Adam."""
    l2: float = 15.0
    """The penalty of half a squared personal parameter, on the scale of the summed log likelihood."""
    most: int = ALL
    """Up to so many existing items, an impression is compared with all of them."""
    drawn: int = DRAWN
    """With so many drawn ones otherwise."""
    seed: int = 0
    """The seed of everything drawn."""


# By name, b_i and the personal terms, (ids, width). While they are fitted, a last row of zeros stands for all
# ids that are unknown.
Vectors = dict[str, Tensor]


def sides(known: Known) -> dict[str, Ids]:
    """The personal vectors P, E, Q, G and F, and whose they are."""
    users, items = known.users, known.items
    return {"user_P": users, "history_E": items, "item_Q": items, "user_G": users, "audience_F": users}


def fading(real_NL: Tensor) -> Tensor:
    """What each entry counts in the fading mean of a sequence that is padded on the left, (N, L)."""
    weight_NL = FADING ** torch.arange(real_NL.shape[1] - 1, -1, -1, device=real_NL.device) * real_NL
    return STRENGTH * weight_NL / weight_NL.sum(1, keepdim=True).clamp(min=1e-9)


def fit(split: Split, fitting: Fitting) -> dict[str, Tensor]:
    """All buffers of `exposure`, fitted on the training set."""
    log, known = split.log, split.known
    if not (split.mask("train") & (log.label == 0)).any():
        raise BadInput(
            "`exposure` learns from what was shown and not clicked, and the training set has no such row; "
            "`power` needs clicks only"
        )
    random = np.random.default_rng([fitting.seed, 29])
    everything = training_impressions(split, clicked=False)
    impressions = few_enough(everything.some(~everything.random), random, fitting.most, fitting.drawn)
    held = random.random(len(impressions)) < HELD_OUT
    if held.all() or not held.any():
        raise BadInput(
            f"`exposure` learns from impressions that were not random, with items that were shown before: "
            f"found {len(impressions)}"
        )
    span = split.train_end - int(log.time.min())
    half_lives = (HALF_LIVES[0] * span, HALF_LIVES[1] * span)
    moments, past = Moments.of(split), ItemPast(log, half_lives)
    learn, stop = (_Part(impressions.some(of), known, past, moments, fitting, random) for of in (~held, held))
    start = np.zeros(1 + len(ItemPast.NAMES))
    start[0] = np.log(sum(float(b.shown_N @ b.weight_N) for b in learn.blocks) / learn.impressions)
    theta, _ = learn.newton(start)
    vectors = _personal(learn, stop, known, theta, fitting)
    for part in (learn, stop):
        part.offset_by(vectors)
    theta, covariance = learn.newton(theta)
    for part in (learn, stop):
        part.rebase(theta)
    vectors["item_bias"] = _biases(learn, stop, vectors, fitting.l2)
    fitted = {"theta": theta, "covariance": covariance, "line": stop.line(vectors)}
    tensors = {name: torch.from_numpy(array) for name, array in fitted.items()}
    tensors["half_lives"] = torch.tensor(half_lives)
    tensors["moments"] = torch.tensor([moments.first, moments.step])
    items = len(shown_before(log, split.train_end))
    tensors["random_share"] = torch.tensor(_share_at_random(everything, items))
    return tensors | {name: vector[:-1] for name, vector in vectors.items()}


def _share_at_random(impressions: Impressions, items: int) -> float:
    """How many items an impression shows, of all: of those served at random, or of all if there are
    none."""
    counts = np.bincount(impressions.of_row, minlength=len(impressions))
    chosen = counts[impressions.random] if impressions.random.any() else counts
    return float(min(chosen.mean() / items, 1.0))


class _Block:
    """Some impressions V with their pairs N, and the distinct audiences A of these."""

    def __init__(
        self,
        impressions: Impressions,
        pairs: Pairs,
        part: slice,
        moment_V: Ints,
        past: ItemPast,
        known: Known,
    ) -> None:
        log, impression, item = impressions.log, pairs.impression_id[part], pairs.item[part]
        own = slice(int(impression[0]), int(impression[-1]) + 1)
        time, user_V = impressions.time[impression], impressions.user[own]
        start, stop = log.audiences.before(item, time, RECENT)
        ends = np.where(stop > start, stop, -1)
        _, first, which = np.unique(ends, return_index=True, return_inverse=True)
        audience_AL = _window(log.audiences, item[first], time[first])
        history_VL = _window(log.histories, user_V, impressions.time[own])
        self.user_V, self.moment_V = _row(torch.from_numpy(user_V), known.users), moment_V[own]
        self.history_VL, self.history_weight_VL = _row(history_VL, known.items), fading(history_VL != PAD)
        self.audience_AL, self.audience_weight_AL = _row(audience_AL, known.users), fading(audience_AL != PAD)
        self.audience_N = torch.from_numpy(which)
        self.impression_N = torch.from_numpy(impression - own.start)
        self.item_N, self.features_NF = _row(torch.from_numpy(item), known.items), past.at(item, time)
        self.shown_N = torch.from_numpy(pairs.happened[part].astype(np.float32))
        self.weight_N = torch.from_numpy(pairs.weight[part].astype(np.float32))
        self.base_N = self.offset_N = torch.zeros(len(item))  # b + w . f - log sum exp; the personal terms


def newton(theta: Floats, derivatives: Callable[[Floats], tuple[Floats, Floats]]) -> Floats:
    """The most likely parameters, by Newton's method whose steps are at most one, given the information and
    the slope of the log likelihood at some parameters."""
    for _ in range(NEWTON):
        step = np.linalg.solve(*derivatives(theta))
        theta = theta + step * min(1, 1 / max(float(abs(step).max()), 1e-12))
        if abs(step).max() < 1e-6:
            break
    return theta


class _Part:
    """Impressions to learn from, or to stop by."""

    def __init__(
        self,
        impressions: Impressions,
        known: Known,
        past: ItemPast,
        moments: Moments,
        fitting: Fitting,
        random: np.random.Generator,
    ) -> None:
        self.impressions = len(impressions)
        found, which_V = moments.of_times(impressions.time)
        self.all_items = []
        for moment in found.tolist():
            items, each = spread_items(shown_before(impressions.log, moment), known.items.size)
            self.all_items.append((past.at(items, moment), float(np.log(each))))
        self.users = known.users.size
        pairs = pairs_of(impressions, random, fitting.most, fitting.drawn)
        self.blocks = [
            _Block(impressions, pairs, part, which_V, past, known) for part in blocks(pairs, BLOCK)
        ]

    def rebase(self, theta: Floats) -> None:
        """Compute b + w . f - log sum exp of all pairs."""
        sums, _ = normalisers(self.all_items, theta[1:])
        for block in self.blocks:
            moment = block.moment_V[block.impression_N.numpy()]
            base = theta[0] + block.features_NF @ theta[1:] - sums[moment]
            block.base_N = torch.from_numpy(base.astype(np.float32))

    def offset_by(self, vectors: Vectors) -> None:
        """Take the personal terms as given."""
        for block in self.blocks:
            block.offset_N = _terms(vectors, block)

    def newton(self, theta: Floats) -> tuple[Floats, Floats]:
        """The most likely b and w, given the offsets, and their covariance by users: the sandwich of the
        information around the scores of the users."""

        def derivatives(theta: Floats) -> tuple[Floats, Floats]:
            information, scores = self._information(theta)
            return information, scores.sum(0)

        theta = newton(theta, derivatives)
        information, scores = self._information(theta)
        users = max(int((abs(scores).sum(1) > 0).sum()), 2)
        half = np.linalg.solve(information, scores.T)
        return theta, half @ half.T * users / (users - 1)

    def _information(self, theta: Floats) -> tuple[Floats, Floats]:
        """The expected information of b and w, and the score of each user. A trace of a ridge keeps what no
        data tell apart from running away."""
        sums, slopes = normalisers(self.all_items, theta[1:])
        information, scores = 1e-3 * np.eye(len(theta)), np.zeros((self.users + 1, len(theta)))
        for block in self.blocks:
            impression = block.impression_N.numpy()
            moment = block.moment_V[impression]
            design = np.concatenate(
                [np.ones((len(impression), 1)), block.features_NF - slopes[moment]], axis=1
            )
            logit = theta[0] + block.features_NF @ theta[1:] - sums[moment] + block.offset_N.numpy()
            chance = sigmoid(logit)
            weight = block.weight_N.numpy().astype(np.float64)
            information += (design * (weight * chance * (1 - chance))[:, None]).T @ design
            each = design * (weight * (block.shown_N.numpy() - chance))[:, None]
            user = block.user_V.numpy()[impression]
            for place in range(len(theta)):
                scores[:, place] += np.bincount(user, each[:, place], minlength=len(scores))
        return information, scores

    def loss(self, vectors: Vectors) -> float:
        """The mean over impressions of minus the log likelihood."""
        return sum(float(_loss(vectors, block)) for block in self.blocks) / self.impressions

    def line(self, vectors: Vectors) -> Floats:
        """The intercept and the slope that make the logits most likely (Platt's scaling)."""
        parts = [_logit(vectors, block) for block in self.blocks]
        logit = torch.cat(parts).double().numpy()
        shown = torch.cat([block.shown_N for block in self.blocks]).double().numpy()
        weight = torch.cat([block.weight_N for block in self.blocks]).double().numpy()
        design = np.stack([np.ones(len(logit)), logit], axis=1)

        def derivatives(line: Floats) -> tuple[Floats, Floats]:
            chance = sigmoid(design @ line)
            curve = (design * (weight * chance * (1 - chance))[:, None]).T @ design + 1e-3 * np.eye(2)
            return curve, design.T @ (weight * (shown - chance))

        line = newton(np.array([0.0, 1.0]), derivatives)
        return line if line[1] > 0 else np.array([0.0, 1.0])


def _personal(learn: _Part, stop: _Part, known: Known, theta: Floats, fitting: Fitting) -> Vectors:
    """The personal vectors, given b and w; zeros where they say nothing about the held-out impressions."""
    for part in (learn, stop):
        part.rebase(theta)
    drawn = torch.Generator().manual_seed(fitting.seed)
    vectors = {"item_bias": torch.zeros(known.items.size + 1, 1)}
    for name, ids in sides(known).items():
        vectors[name] = torch.zeros(ids.size + 1, fitting.width)
        if name in DRAWN_FIRST:
            vectors[name][:-1].normal_(0, DEVIATION, generator=drawn)
    best = {name: torch.zeros_like(vector) for name, vector in vectors.items()}
    best_loss, best_epoch = stop.loss(best), 0
    parameters = [vector.requires_grad_() for vector in vectors.values()]
    optimizer = torch.optim.Adam(parameters, lr=fitting.learning_rate, fused=True)
    order = np.random.default_rng([fitting.seed, 31])
    for epoch in range(fitting.epochs):
        for number in order.permutation(len(learn.blocks)).tolist():
            block = learn.blocks[number]
            with torch.enable_grad():
                penalty = sum(((vector**2).sum() for vector in parameters), torch.zeros(()))
                loss = (
                    _loss(vectors, block) / len(block.user_V) + fitting.l2 / 2 / learn.impressions * penalty
                )
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        loss_now = stop.loss(vectors)
        if loss_now < best_loss:
            best = {name: vector.detach().clone() for name, vector in vectors.items()}
            best_loss, best_epoch = loss_now, epoch
        elif epoch - best_epoch >= PATIENCE:
            break
    for name in DRAWN_FIRST:  # of whom no impression taught anything, nothing is said
        used = torch.zeros(len(best[name]), 1)
        for block in learn.blocks:
            used[block.item_N if name == "item_Q" else block.user_V] = 1
        best[name] *= used
    return best


def _biases(learn: _Part, stop: _Part, vectors: Vectors, l2: float) -> Tensor:
    """b_i, given everything else, by a few steps of Newton's method; zeros where they say nothing about the
    held-out impressions."""
    nothing = torch.zeros_like(vectors["item_bias"])
    bias = nothing.clone()
    for _ in range(BIAS_STEPS):
        slope, curve = -l2 * bias[:, 0], torch.full((len(bias),), l2)
        for block in learn.blocks:
            chance = torch.sigmoid(_logit(vectors | {"item_bias": bias}, block))
            slope.index_add_(0, block.item_N, block.weight_N * (block.shown_N - chance))
            curve.index_add_(0, block.item_N, block.weight_N * chance * (1 - chance))
        bias[:, 0] += slope / curve
        bias[-1] = 0
    with_bias, without = (stop.loss(vectors | {"item_bias": of}) for of in (bias, nothing))
    return bias if with_bias < without else nothing


def _loss(vectors: Vectors, block: _Block) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        _logit(vectors, block), block.shown_N, weight=block.weight_N, reduction="sum"
    )


def _logit(vectors: Vectors, block: _Block) -> Tensor:
    return block.base_N + _looked_up(vectors["item_bias"], block.item_N)[:, 0] + _terms(vectors, block)


def _terms(vectors: Vectors, block: _Block) -> Tensor:
    """<P_u + mean E, Q_i> + <G_u, mean F> of each pair."""
    history_VD = _bag(vectors["history_E"], block.history_VL, block.history_weight_VL)
    side_VD = _looked_up(vectors["user_P"], block.user_V) + history_VD
    audience_AD = _bag(vectors["audience_F"], block.audience_AL, block.audience_weight_AL)
    user_ND = _looked_up(vectors["user_G"], block.user_V).index_select(0, block.impression_N)
    first = side_VD.index_select(0, block.impression_N) * _looked_up(vectors["item_Q"], block.item_N)
    return (first + user_ND * audience_AD.index_select(0, block.audience_N)).sum(1)


def _looked_up(vectors: Tensor, rows: Tensor) -> Tensor:
    return functional.embedding(rows, vectors, padding_idx=len(vectors) - 1)


def _bag(vectors: Tensor, rows_NL: Tensor, weight_NL: Tensor) -> Tensor:
    return functional.embedding_bag(
        rows_NL, vectors, per_sample_weights=weight_NL, mode="sum", padding_idx=len(vectors) - 1
    )


def _window(view: Sequences, entity: Ints, time: Ints) -> Tensor:
    """The newest ids before each time, padded on the left to RECENT, (N, RECENT)."""
    ids = view.padded(*view.before(entity, time, RECENT))
    return functional.pad(torch.from_numpy(ids.astype(np.int64)), (RECENT - ids.shape[1], 0), value=PAD)


def _row(codes: Tensor, ids: Ids) -> Tensor:
    """The row of each id: the last one for PAD and for unknown and rare ids."""
    unknown = (codes < 0) | (codes >= ids.size)
    rows = codes.masked_fill(unknown, ids.size)
    if ids.rare is not None:
        rare = torch.from_numpy(np.append(ids.rare, False))
        rows = rows.masked_fill(rare[rows], ids.size)
    return rows
