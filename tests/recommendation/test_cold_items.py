"""Cold items: contents, similarities and the calibration against plain numpy; lists and probabilities."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import unskew
from tests.helpers.errors import refused
from tests.helpers.shops import shop_log
from unskew.data.log.item_feed import ItemFeed, with_items
from unskew.data.log.log import Log
from unskew.data.log.vocabulary import Feature
from unskew.recommendation.cold_items import (
    DECAY,
    DIMENSIONS,
    WARM,
    ColdItems,
    ItemContent,
    WithColdItems,
    are_cold,
    calibrated,
)
from unskew.recommendation.options import RecommendOptions


def content(titles: list[str | None] | None = None, **features: list[Any]) -> ItemContent:
    columns = {name: Feature(pa.array(values)) for name, values in features.items()}
    size = max(map(len, [*features.values(), titles or []]))
    return ItemContent.of(columns, None if titles is None else pa.array(titles, pa.string()), size)


def products(made: ItemContent) -> np.ndarray:
    return made.vectors_ID @ made.vectors_ID.T


def test_tags_words_and_embeddings() -> None:
    tags = products(content(kind=["tea", "tea|cup", "cup", None]))
    weights = np.log1p(4 / np.array([2, 2]))  # tea, cup
    assert tags[0, 1] == pytest.approx(weights[0] / np.hypot(*weights))
    assert (tags[0, 2], tags[3, 3]) == (0, 0)
    assert np.allclose(np.diag(tags)[:3], 1)
    words = products(content(["Green tea of Assam", "The tea of Assam", "A cup", None, "Another"]))
    assert words[0, 1] > 0.9  # tea, of, assam; words that one item alone has say nothing
    assert words[0, 2] == words[4, 4] == 0
    own = products(content(vector=["1 0 0", "0.5 0.5 0", "0 0 2e0", None]))
    assert own[0, 1] == pytest.approx(np.sqrt(0.5))
    assert (own[0, 2], own[2, 2], own[3, 3]) == (0, 1, 0)
    long = [f"some long words of item {number % 3}" for number in range(6)]
    assert products(content(about=long))[0, 3] == pytest.approx(1)  # a text is no tag
    assert products(content(about=long))[0, 1] > 0
    assert not content(price=[1.0, 2.0]).vectors_ID.any()  # numbers are no content


def test_a_truncated_svd_keeps_the_products() -> None:
    random = np.random.default_rng(0)
    groups = random.integers(0, 40, 300)
    tags = [f"g{group}|h{group % 5}" for group in groups]
    made = content([f"word{group} common" for group in groups], kind=tags)
    assert made.vectors_ID.shape == (300, DIMENSIONS)
    same = groups[:, None] == groups
    near = products(made)
    assert near[same].min() > 0.99
    assert near[~same].max() < 0.9
    again = content([f"word{group} common" for group in groups], kind=tags)
    assert np.allclose(products(again), near, atol=1e-5)


def test_similarity_reads_the_newest_items_most() -> None:
    made = content(kind=["a", "b", "c", None])
    found = made.similarity(np.array([[0, 1], [-1, 2], [-1, -1], [99, 0]]))
    length = np.hypot(DECAY, 1)
    assert np.allclose(found[0], [DECAY / length, 1 / length, 0, 0], atol=1e-6)
    assert np.allclose(found[1:], [[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]], atol=1e-6)


def test_calibration_is_a_regression_over_warm_items() -> None:
    random = np.random.default_rng(1)
    similarity = random.random((3, 50)).astype(np.float32)
    scores = (2 + 3 * similarity + 0.5 * random.normal(size=(3, 50))).astype(np.float32)
    scores[1] = 4 - similarity[1]  # what is less similar has higher scores
    cold = random.random((3, 50)) < 0.3
    cold[2] = True  # nothing is warm
    scores[0, 5], cold[0, 5] = -np.inf, False  # which counts for nothing
    found = calibrated(torch.from_numpy(scores), similarity, cold, 1.5).numpy()
    assert (found[~cold] == scores[~cold]).all()
    warm = ~cold[0] & np.isfinite(scores[0])
    slope, start = np.polyfit(similarity[0, warm].astype(float), scores[0, warm].astype(float), 1)
    spread = np.std(scores[0, warm] - start - slope * similarity[0, warm])
    assert slope > 2
    expected = start + slope * similarity[0] + 1.5 * spread
    assert np.allclose(found[0][cold[0]], expected[cold[0]], atol=1e-4)
    least = np.polyfit(similarity[1][cold[1]], found[1][cold[1]], 1)[0]
    assert least == pytest.approx(0.1, abs=1e-3)  # both have the same spread
    assert np.argmax(found[1][cold[1]]) == np.argmax(similarity[1][cold[1]])
    assert (found[2] == scores[2]).all()


def feed(log: Log, since: int) -> Log:
    """The shop with new items, of which nobody had any."""
    ids = pa.array(["new boots", "new hat", "new thing"])
    features = {"category": pa.array(["shoes", "hats", None])}
    return with_items(log, ItemFeed(ids, np.full(3, since), None, features))


def test_cold_is_what_few_had_before() -> None:
    log = feed(shop_log(), int(shop_log().time[0]))
    for moment in (int(log.time.min()), int(np.median(log.time)), log.now):
        counts = Counter(log.item[log.time < moment].tolist())
        for warm in (WARM, 5):
            expected = [counts[code] < warm for code in range(len(log.items))]
            assert are_cold(log, np.array([moment, moment]), warm).tolist() == [expected, expected]


def test_the_threshold_says_which_scores_are_those_of_the_content() -> None:
    log = feed(shop_log(), shop_log().now - 86_400)
    counts = np.bincount(log.item, minlength=len(log.items))
    warm = int(np.median(counts))
    random = np.random.default_rng(0)
    scores = torch.from_numpy(random.normal(size=(1, len(log.items))).astype(np.float32))
    found = ColdItems(log, warm=warm).rescore(scores, np.array([log.now]), np.array([[1, 2]]))
    changed = (found != scores)[0].numpy()
    assert changed.tolist() == (counts < warm).tolist()


def recommended(log: Log, history: list[str], **options: Any) -> dict[str, float]:
    table = unskew.recommend(log, histories=[history], k=99, include_seen=True, **options).table
    return dict(zip(table["item_id"].to_pylist(), table["score"].to_pylist(), strict=True))


def test_new_items_are_recommended_by_what_they_are() -> None:
    log = feed(shop_log(), shop_log().now - 86_400)
    own = recommended(log, ["i13", "i17", "i21"])  # hats
    for history, nearest in ((["i13", "i17", "i21"], "new hat"), (["i1", "i2", "i3"], "new boots")):
        scores = recommended(log, history, cold="content")
        new = {name: score for name, score in scores.items() if name.startswith("new")}
        assert max(new, key=lambda name: new[name]) == nearest
        warm = {name for name in scores if not name.startswith("new")}
        assert {name: scores[name] for name in warm} == pytest.approx(
            {name: score for name, score in recommended(log, history).items() if name in warm}
        )
        assert min(scores[name] for name in warm) < new[nearest] < max(scores[name] for name in warm)
    assert own["new hat"] == pytest.approx(own["new boots"])  # pulse-zero reads no tags


def test_what_is_not_known_yet_is_not_read() -> None:
    """The category of new items is said a day after they are listed."""
    log = shop_log()
    begin = log.now - 5 * 86_400
    ids = pa.array(["new boots", "new boots"])
    values = {"category": pa.array([None, "shoes"])}
    log = with_items(log, ItemFeed(ids, np.array([begin, begin + 86_400]), None, values))
    early, late = (
        recommended(log, ["i1", "i2"], cold="content", at=begin + day * 86_400 + 5) for day in (0.5, 2)
    )
    plain = [ColdItems(log).content(int(begin + day * 86_400)).vectors_ID for day in (0.5, 2)]
    code = log.items.ids.to_pylist().index("new boots")
    assert not plain[0][code].any()
    assert plain[1][code].any()
    assert "new boots" in early.keys() & late.keys()


def test_evaluation_ranks_the_same_scores() -> None:
    """The scorer for evaluation and the lists agree."""
    log = feed(shop_log(), shop_log().now - 86_400)
    model = unskew.load("pulse-zero")
    lists = model.recommend(histories=[["i13", "i17"]], log=log, k=99, include_seen=True, cold="content")
    scorer = WithColdItems(model.network)
    from unskew.data.batches.batch import contexts_of
    from unskew.data.log.views import Sequences

    codes = log.items.codes(["i13", "i17"])
    past = Sequences(codes, np.full(2, log.now - 1), np.array([0, 2]))
    times = np.array([log.now])
    context = contexts_of(log, np.array([len(log.users)]), times, past, np.array([0]), scorer.history)
    scores = scorer.catalog(log, log.now, log.now + 1).scores(context)[0].numpy()
    found = dict(zip(lists.table["item_id"].to_pylist(), lists.table["score"].to_pylist(), strict=True))
    for code, name in enumerate(log.items.ids.to_pylist()):
        assert found[name] == pytest.approx(float(scores[code]), abs=1e-4)


def test_options_that_do_not_fit() -> None:
    content: dict[str, Any] = {"cold": "content"}
    for wrong in ({"cold": "warm"}, content | {"approximate": True}, content | {"explain": True}):
        with refused("cold"):
            RecommendOptions(**wrong)
