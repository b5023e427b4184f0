"""The loop from guessed to logged exposure: visitors with a known taste come to the service, and its own log
gives an unbiased estimate of that taste."""

from pathlib import Path

import numpy as np

import unskew
from tests.helpers.serving import ITEMS, click, saved_run, serving
from unskew.serve import export_log
from unskew.serve.http.schemas import RecommendationRequest

IMPRESSIONS, K, SHARE = 2000, 5, 0.4


def test_logged_propensities_are_right(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    # Visitors click popular items more often, and the model shows mostly these: the naive rate is too high.
    taste = {f"i{n}": float(rate) for n, rate in enumerate(np.linspace(0.6, 0.02, ITEMS))}
    with serving(
        saved_run(tmp_path / "run", "popularity"), tmp_path / "e.db", explore=SHARE, seed=8
    ) as service:
        for _ in range(IMPRESSIONS):
            user = f"u{random.integers(40)}"
            shown = service.recommend(RecommendationRequest(user_id=user, k=K, include_seen=True))
            items = [item["item_id"] for item in shown["items"]]
            clicked = [item for item in items if random.random() < taste[item]]
            name = shown["recommendation_id"]
            events = [
                click(0, user, item, event_id=f"{name}-{item}", recommendation_id=name) for item in clicked
            ]
            if events:
                assert service.append(events)["accepted"] == len(events)
        exported = export_log(service.store, tmp_path / "log", service.store.types)
    log = unskew.read(tmp_path / "log")
    assert len(log) == exported.rows == IMPRESSIONS * K
    assert exported.logged == exported.rows
    assert log.propensity is not None
    assert log.impression_id is not None
    assert log.exposed is not None
    weight = 1 / np.asarray(log.propensity, np.float64)
    impression = np.unique(log.impression_id, return_inverse=True)[1]

    # Of each list, the sum of 1 / propensity is the number of items that could be in it, on average.
    candidates = np.bincount(impression, weight)
    assert len(candidates) == IMPRESSIONS
    assert abs(candidates.mean() - ITEMS) < 3 * candidates.std() / np.sqrt(IMPRESSIONS)
    # So is each item as often in a list, weighted, as there are lists.
    for code in range(ITEMS):
        per_impression = np.bincount(impression, weight * (np.asarray(log.item) == code), IMPRESSIONS)
        assert abs(per_impression.mean() - 1) < 4.5 * per_impression.std() / np.sqrt(IMPRESSIONS)
    # Random rows are marked: the fraction of random items is what was asked for.
    assert abs(np.mean(log.exposed) - SHARE) < 4 * np.sqrt(SHARE * (1 - SHARE) / (IMPRESSIONS * K))

    ground_truth = np.mean(list(taste.values()))
    estimate = np.bincount(impression, weight * log.label) / ITEMS
    error = estimate.std() / np.sqrt(IMPRESSIONS)
    assert abs(estimate.mean() - ground_truth) < 3 * error
    naive = np.asarray(log.label, np.float64)
    assert abs(naive.mean() - ground_truth) > 10 * naive.std() / np.sqrt(IMPRESSIONS * K)
    # The rows that were drawn at random are an unbiased test by themselves, nearly: the others are the best.
    unbiased = naive[np.asarray(log.exposed) == 1]
    assert abs(unbiased.mean() - ground_truth) < abs(naive.mean() - ground_truth) / 2
