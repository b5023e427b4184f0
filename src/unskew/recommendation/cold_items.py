"""Items that nobody has had yet, scored by what they are (content).

    v_i       the content of item i, a vector of length 1: what is known of it before the request
    u         sum over the user's newest items j of DECAY^(position of j) * v_j
    s(i)      the cosine of u and v_i
    score(i)  a + b * s(i) + boost * d              for an item with fewer than WARM events before the request

a, b and d come from the request itself: the regression of the model's scores on s over the warm items, and
the standard deviation of its residuals. So a cold item gets the score that the model gives to a typical warm
item which is as similar to the user's items, and `boost` says how far above that. The correlation behind b is
taken to be at least CORRELATION, so that cold items are always ordered by their content. The scores of warm
items do not change. Without a history, all cold items get a + boost * d.

The content of an item is made of three parts, each of length 1 where there is one: tags, in which a tag that
n of N items have counts log(1 + N / n); words of the title and of texts, by TF-IDF; and an embedding of the
caller's own, numbers between blanks in a text. Tags and words are brought to DIMENSIONS numbers by a
truncated SVD.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor

from unskew.data.batches.batch import Batch
from unskew.data.log.arrays import Ints
from unskew.data.log.log import LogView
from unskew.data.log.vocabulary import PAD, Feature
from unskew.nn.scoring import Catalog, Scorer

WARM = 1  # events from which on the model's own score counts; chosen as BOOST was
EXPLORED = 5  # events from which on an item has no share of exploration of its own
BOOST = 2.0  # standard deviations, chosen on validation sets by benchmarks/cold_items.py
CORRELATION = 0.1
DECAY = 0.9  # of an item of the history for each one that came after it
DIMENSIONS = 64
OWN = 50  # of a user's newest items
WORDS_OF_TEXT = 3.0  # a feature whose values have so many words on average is a text and no tag
WORD = re.compile(r"\w+")
VECTOR = r"^\s*[-+]?[\d.]+([eE][-+]?\d+)?(\s+[-+]?[\d.]+([eE][-+]?\d+)?)+\s*$"

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ItemContent:
    """The contents of all items: vectors of length 1, or 0 where nothing is known."""

    vectors_ID: Floats

    @classmethod
    def of(cls, features: Mapping[str, Feature], titles: pa.Array | None, items: int) -> "ItemContent":
        """Read what is known of items. Of those at the end, nothing may be known."""
        tags, words, embeddings = list[sparse.csr_array](), list[pa.Array](), list[Floats]()
        for feature in features.values():
            if feature.is_number:
                continue
            texts = feature.values.cast(pa.string())
            if _is_embedding(texts):
                embeddings.append(_embedding(texts, items))
            elif _mean_words(feature.names.cast(pa.string())) >= WORDS_OF_TEXT:
                words.append(texts)
            else:
                tags.append(_tag_matrix(feature, items))
        if titles is not None:
            words.append(titles.cast(pa.string()))
        parts = [_of_length_1(sparse.hstack(tags))] if tags else []
        parts += [_of_length_1(_word_matrix(words, items))] if words else []
        dense = [_reduced(sparse.csr_array(sparse.hstack(parts)))] if parts else []
        dense += embeddings
        vectors = np.concatenate(dense, axis=1) if dense else np.zeros((items, 1), np.float32)
        return cls(_rows_of_length_1(vectors))

    def similarity(self, own_BL: Ints) -> Floats:
        """s(i) of all items for some histories, padded on the left, (B, items)."""
        own = np.where(own_BL < len(self.vectors_ID), own_BL, PAD)[:, -OWN:]
        real = own != PAD
        back = real.sum(1)[:, None] - real.cumsum(1)
        weight = np.where(real, DECAY**back, 0).astype(np.float32)
        users = np.einsum("bl,bld->bd", weight, self.vectors_ID[np.where(real, own, 0)])
        return np.asarray(_rows_of_length_1(users) @ self.vectors_ID.T, np.float32)


def calibrated(scores_BI: Tensor, similarity_BI: Floats, cold_BI: NDArray[np.bool_], boost: float) -> Tensor:
    """The scores with those of cold items in place of the model's own.

    scores_BI: the model's.
    similarity_BI: s(i).
    cold_BI: which items are cold; all others have been warm before.
    """
    scores, similarity = scores_BI.double(), torch.from_numpy(similarity_BI).double()
    warm = torch.from_numpy(~cold_BI) & scores.isfinite()
    count = warm.sum(1, keepdim=True).clamp(min=1)
    mean_m = scores.masked_fill(~warm, 0).sum(1, keepdim=True) / count
    mean_s = similarity.masked_fill(~warm, 0).sum(1, keepdim=True) / count
    m, s = (scores - mean_m).masked_fill(~warm, 0), (similarity - mean_s).masked_fill(~warm, 0)
    squares_m, squares_s = ((each * each).sum(1, keepdim=True) for each in (m, s))
    least = CORRELATION * (squares_m / squares_s.clamp(min=1e-12)).sqrt()
    slope = torch.maximum((m * s).sum(1, keepdim=True) / squares_s.clamp(min=1e-12), least)
    spread = ((m - slope * s).square().sum(1, keepdim=True) / count).sqrt()
    cold = mean_m + slope * (similarity - mean_s) + boost * spread
    any_warm = warm.any(1, keepdim=True)
    return torch.where(torch.from_numpy(cold_BI) & any_warm, cold, scores).float()


def are_cold(log: LogView, times: Ints, warm: int = WARM) -> NDArray[np.bool_]:
    """Which items have fewer than `warm` events before each time, (times, items)."""
    view, items = log.audiences, len(log.items)
    cold = np.ones((len(times), items), bool)
    distinct, which = np.unique(times, return_inverse=True)
    for place, time in enumerate(distinct.tolist()):
        start, end = view.before(np.arange(len(view)), time)
        cold[which == place, : len(view)] = end - start < warm
    return cold


class ColdItems:
    """Scores of cold items of one log, by their content. What is read of the items is kept until they are
    others."""

    def __init__(self, log: LogView, boost: float = BOOST, warm: int = WARM) -> None:
        self.log, self.boost, self.warm = log, boost, warm
        self._content: tuple[object, int, ItemContent] | None = None

    def content(self, at: int | None = None) -> ItemContent:
        """The content of the items as it is known before a time; by default, at last."""
        items = self.log.items
        features, titles = items.features_at(at), items.titles
        kept = self._content
        if kept is None or kept[0] is not features or kept[1] != len(items):
            kept = self._content = features, len(items), ItemContent.of(features, titles, len(items))
        return kept[2]

    def rescore(self, scores_BI: Tensor, times_B: Ints, own_BL: Ints, at: int | None = None) -> Tensor:
        """Give cold items scores by their content.

        times_B, own_BL: when the requests are, and the users' items, padded on the left.
        at: the content is that of before this time; by default, the newest.
        """
        cold = are_cold(self.log, times_B, self.warm)
        if not cold.any():
            return scores_BI
        return calibrated(scores_BI, self.content(at).similarity(own_BL), cold, self.boost)


class WithColdItems:
    """A scorer whose cold items are scored by their content, for evaluation."""

    def __init__(self, scorer: Scorer, boost: float = BOOST, warm: int = WARM) -> None:
        self.scorer, self.boost, self.warm = scorer, boost, warm

    @property
    def history(self) -> int:
        """How many past items of a user it reads."""
        return max(self.scorer.history, OWN)

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        """The scores of all items at times from `first` up to `last`."""
        cold = ColdItems(log, self.boost, self.warm)
        return _ColdCatalog(self.scorer.catalog(log, first, last), cold, first)


class _ColdCatalog:
    def __init__(self, catalog: Catalog, cold: ColdItems, first: int) -> None:
        self._catalog, self._cold, self._first = catalog, cold, first

    def scores(self, context: Batch) -> Tensor:
        times, own = context.times_B.cpu().numpy(), context.history_BL.cpu().numpy()
        return self._cold.rescore(self._catalog.scores(context).cpu(), times, own, self._first)


# The parts of a content


def _tag_matrix(feature: Feature, items: int) -> sparse.csr_array:
    code, tag, names = feature.tags
    weight = np.log1p(items / np.maximum(np.bincount(tag, minlength=len(names)), 1))[tag]
    return sparse.csr_array((weight, (code, tag)), (items, max(len(names), 1)), dtype=np.float32)


def _word_matrix(texts: list[pa.Array], items: int) -> sparse.csr_array:
    """TF-IDF of the words of some texts of each item. A word that one item alone has says nothing."""
    numbers: dict[str, int] = {}
    row, column = list[int](), list[int]()
    for text in texts:
        for code, words in _words(text):
            row += [code] * len(words)
            column += [numbers.setdefault(word, len(numbers)) for word in words]
    counts = sparse.csr_array((np.ones(len(row)), (row, column)), (items, max(len(numbers), 1)))
    counts.sum_duplicates()
    having = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = np.where(having > 1, np.log((1 + items) / np.maximum(having, 1)), 0)
    return sparse.csr_array(counts @ sparse.diags_array(idf))


def _words(text: pa.Array) -> Iterator[tuple[int, list[str]]]:
    for code, value in enumerate(text.to_pylist()):
        if value is not None:
            yield code, WORD.findall(value.lower())


def _mean_words(names: pa.Array) -> float:
    values = names.slice(0, 1000).to_pylist()
    return float(
        np.mean([len(WORD.findall(value.replace("|", " | ").split("|")[0])) for value in values] or [0])
    )


def _is_embedding(texts: pa.Array) -> bool:
    valid = texts.drop_null()
    return bool(len(valid)) and bool(pc.all(pc.match_substring_regex(valid, VECTOR)).as_py())


def _embedding(texts: pa.Array, items: int) -> Floats:
    """Vectors of the caller's own, of length 1; the shorter ones are filled with zeros."""
    rows = [
        (code, [float(x) for x in value.split()]) for code, value in enumerate(texts.to_pylist()) if value
    ]
    vectors = np.zeros((items, max(len(values) for _, values in rows)), np.float32)
    for code, values in rows:
        vectors[code, : len(values)] = values
    return _rows_of_length_1(vectors)


def _of_length_1(matrix: sparse.csr_array) -> sparse.csr_array:
    length = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    return sparse.csr_array(sparse.diags_array(1 / np.maximum(length, 1e-12)) @ matrix)


def _rows_of_length_1(vectors: Floats) -> Floats:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), np.float32)


def _reduced(matrix: sparse.csr_array) -> Floats:
    """The rows in at most DIMENSIONS numbers, with nearly the same products."""
    if min(matrix.shape) <= DIMENSIONS:
        return np.asarray(matrix.todense(), np.float32)
    start = np.random.default_rng(0).normal(size=min(matrix.shape))
    left, values, _ = svds(matrix.astype(np.float64), DIMENSIONS, v0=start)
    return np.asarray(left * values, np.float32)
