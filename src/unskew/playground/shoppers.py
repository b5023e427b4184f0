"""Simulated users of a running service: they look at lists, click what they like, and find products alone.

    for each list, from the top:   the user looks at the next place with probability ATTENTION
    what is looked at              is clicked with the probability of the true preference
    ORGANIC of the users           also find one product without a list, by their true preference alone

Everything goes over HTTP, as with real clients. The shoppers know the truth, and the service does not.
"""

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from unskew.core.config import AtLeast1, Document, Range, check
from unskew.core.errors import UnskewError
from unskew.diagnostics.log.statistics import gini
from unskew.playground.shop import Shop

ATTENTION = 0.85
ORGANIC = 0.5
RECENT = 5  # days over which shown and sold products are counted
KEPT = 400  # days that the page can show
TOLD = 8  # shoppers in the news
LISTED = 15  # products in the table of what sells
SECONDS = 60.0  # for an answer


@dataclass(frozen=True)
class Client:
    """The service, by its address, with a token if it has tokens."""

    address: str
    token: str = ""

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Document:
        """Send a document to the service, and return its answer."""
        headers = {"content-type": "application/json"}
        headers |= {"authorization": f"Bearer {self.token}"} if self.token else {}
        data = json.dumps(body or {}).encode()
        request = Request(f"{self.address}{path}", data, headers, method="POST")
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                document: Document = json.load(answer)
                return document
        except HTTPError as error:
            text = error.read(500).decode("utf-8", "replace")
            raise UnskewError(f"{self.address}{path}: status {error.code}: {text}") from None
        except (URLError, OSError) as error:
            raise UnskewError(f"{self.address}{path}: no answer ({error})") from None


@dataclass(frozen=True, kw_only=True)
class ShopperSettings:
    """How many users come, and what they see."""

    visitors: AtLeast1 = 25
    """The number of users who come on a day."""
    shown: Annotated[int, Range(least=1, most=50)] = 6
    """The number of products in a list."""
    seed: int = 0
    """Seed of who comes, and of what they do."""


@dataclass(frozen=True)
class Day:
    """What happened on a day. Fractions are of the newest days, and null where nothing is known.

    debias: the debiasing strength of its lists.
    model: the version of the run.
    click_rate: the fraction of the shown products that were clicked.
    gini: the Gini index of what was shown over all products.
    coverage: the fraction of all products that was shown.
    top_sales: the fraction of the clicks in lists that the most popular tenth of the products has.
    liked: the mean true preference of what was shown, as a fraction of that of the best possible lists.
    """

    day: int
    debias: float
    model: str
    lists: int
    clicks: int
    organic: int
    click_rate: float | None
    gini: float | None
    coverage: float
    top_sales: float | None
    liked: float


class Shoppers:
    """The users of a shop, who come day by day."""

    def __init__(self, shop: Shop, client: Client, settings: ShopperSettings, debias: float = 0.0) -> None:
        check(settings)
        self.shop, self.client, self.settings = shop, client, settings
        self.debias = debias  # of the lists from now on; the page sets it
        self._random = np.random.default_rng([settings.seed, 2])
        self._popularity = shop.clicks.astype(np.float64)
        self._numbers = {f"p{number}": number for number in range(shop.settings.products)}
        best = np.sort(shop.preference, axis=1)[:, ::-1][:, : settings.shown]
        self._best = best.mean(axis=1)
        self._shown = deque[NDArray[np.int64]](maxlen=RECENT)  # counts of each day
        self._sold = deque[NDArray[np.int64]](maxlen=RECENT)
        self._days = deque[Day](maxlen=KEPT)
        self._news = deque[Document](maxlen=TOLD)
        self._nights: list[Document] = []
        self._lock = threading.Lock()

    def live(self) -> Day:
        """Let a day pass: the users come one after the other, and their events are stored at its end."""
        strength, products = self.debias, self.shop.settings.products
        shown, sold = np.zeros(products, np.int64), np.zeros(products, np.int64)
        events: list[Document] = []
        liked, possible, model, organic = 0.0, 0.0, "", 0
        users = self._random.choice(self.shop.settings.users, self._number(), replace=False)
        for user in users.tolist():
            body = {"user_id": f"u{user}", "k": self.settings.shown, "debias": strength}
            answer = self.client.post("/v1/recommendations", body)
            listed = [self._numbers[item["item_id"]] for item in answer["items"]]
            model = answer["version"]
            clicked = self._look(user, listed)
            shown[listed] += 1
            sold[clicked] += 1
            liked += float(self.shop.preference[user, listed].sum())
            possible += float(self._best[user] * len(listed))
            found = self._find(user)
            organic += len(found)
            events += [self._event(user, item, answer["recommendation_id"]) for item in clicked]
            events += [self._event(user, item, None) for item in found]
            self._tell(user, listed, clicked)
        if events:
            self.client.post("/v1/events", {"events": events})
        return self._end_day(strength, model, len(users), (shown, sold), organic, liked / max(possible, 1e-9))

    def note_night(self, verdict: str, words: str) -> None:
        """Remember what an update came to."""
        with self._lock:
            self._nights.append({"day": len(self._days), "verdict": verdict, "words": words})

    def state(self) -> Document:
        """Everything that the page shows, as plain JSON types."""
        with self._lock:
            days, nights, news = list(self._days), list(self._nights), list(self._news)
            sold = sum(self._sold, np.zeros(self.shop.settings.products, np.int64))
            shown = sum(self._shown, np.zeros(self.shop.settings.products, np.int64))
        order = np.argsort(-sold, kind="stable")[:LISTED]
        places = np.empty(len(sold), np.int64)
        places[np.argsort(-self.shop.clicks, kind="stable")] = np.arange(1, len(sold) + 1)
        appeal = self.shop.preference.mean(axis=0)
        return {
            "debias": self.debias,
            "visitors": self.settings.visitors,
            "products": self.shop.settings.products,
            "recent": RECENT,
            "days": [asdict(day) for day in days],
            "nights": nights,
            "news": news[::-1],
            "sellers": [
                {
                    "title": self.shop.titles[number],
                    "sold": int(sold[number]),
                    "shown": int(shown[number]),
                    "place": int(places[number]),
                    "liked": round(float(appeal[number]), 4),
                }
                for number in order.tolist()
                if sold[number]
            ],
        }

    # One user

    def _number(self) -> int:
        return min(self.settings.visitors, self.shop.settings.users)

    def _look(self, user: int, listed: list[int]) -> list[int]:
        """What a user clicks in a list."""
        clicked = []
        for item in listed:
            if self._random.random() < self.shop.preference[user, item]:
                clicked.append(item)
            if self._random.random() > ATTENTION:
                break
        return clicked

    def _find(self, user: int) -> list[int]:
        """What a user finds without a list: at most one product."""
        if self._random.random() > ORGANIC:
            return []
        taste = self.shop.preference[user]
        return [int(self._random.choice(len(taste), p=taste / taste.sum()))]

    def _event(self, user: int, item: int, recommendation: str | None) -> Document:
        event = {"event_id": uuid4().hex, "user_id": f"u{user}", "item_id": f"p{item}", "type": "click"}
        return event | ({} if recommendation is None else {"recommendation_id": recommendation})

    def _tell(self, user: int, listed: list[int], clicked: list[int]) -> None:
        names = [self.shop.titles[item] for item in listed]
        with self._lock:
            self._news.append(
                {"user": f"u{user}", "shown": names, "clicked": [self.shop.titles[item] for item in clicked]}
            )

    # The end of a day

    def _end_day(
        self,
        strength: float,
        model: str,
        lists: int,
        counts: tuple[NDArray[np.int64], NDArray[np.int64]],
        organic: int,
        liked: float,
    ) -> Day:
        with self._lock:
            self._shown.append(counts[0])
            self._sold.append(counts[1])
            shown, sold = (sum(each, np.zeros_like(counts[0])) for each in (self._shown, self._sold))
            top = np.argsort(-self._popularity, kind="stable")[: max(1, len(shown) // 10)]
            day = Day(
                day=1 + (self._days[-1].day if self._days else 0),
                debias=strength,
                model=model,
                lists=lists,
                clicks=int(counts[1].sum()),
                organic=organic,
                click_rate=_ratio(int(sold.sum()), int(shown.sum())),
                gini=None if not shown.any() else round(gini(shown), 4),
                coverage=round(float((shown > 0).mean()), 4),
                top_sales=_ratio(int(sold[top].sum()), int(sold.sum())),
                liked=round(liked, 4),
            )
            self._days.append(day)
            return day


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
