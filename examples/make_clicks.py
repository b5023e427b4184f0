"""Makes clicks.csv, the log that the README's examples run on: a made-up shop, no real people.

    python examples/make_clicks.py

Everybody likes one or two of six categories; popular items are shown more; some purchases are repeated.
"""

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

CATEGORIES = ("books", "games", "garden", "kitchen", "music", "tools")
USERS, ITEMS, ROWS = 120, 90, 2000


def main() -> None:
    random = np.random.default_rng(7)
    likes = random.integers(0, len(CATEGORIES), (USERS, 2))
    shown = 1 / (1 + np.arange(ITEMS)) ** 0.7  # some items are shown far more often than others
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    had: dict[int, list[int]] = {}
    file = Path(__file__).with_name("clicks.csv")
    with file.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["user_id", "item_id", "timestamp", "event_type", "category", "title"])
        for row in range(ROWS):
            user = int(random.integers(USERS))
            there = np.arange(ITEMS) < 45 + row * 45 // ROWS  # new items appear all the time
            taste = np.where(np.isin(np.arange(ITEMS) % len(CATEGORIES), likes[user]), 5.0, 1.0)
            chance = shown * there * taste
            item = int(random.choice(ITEMS, p=chance / chance.sum()))
            if had.get(user) and random.random() < 0.08:
                item = had[user][-1]  # bought again
            had.setdefault(user, []).append(item)
            when = begin + timedelta(minutes=int(row * 90 + random.integers(90)))
            event = "purchase" if random.random() < 0.3 else "view"
            category = CATEGORIES[item % len(CATEGORIES)]
            title = f"{category.title()} no. {item // len(CATEGORIES) + 1}"
            rows.writerow([f"u{user + 1}", f"i{item + 1}", when.isoformat(), event, category, title])


if __name__ == "__main__":
    main()
