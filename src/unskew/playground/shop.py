"""The shop of the playground: a simulated world with names, and the log, the run and the store made of it.

The same settings give the same world on every machine, so the shoppers know the true preferences in another
process as well. Its times are moved so that the log ends when the shop is made.
"""

import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unskew.api.create import create_model
from unskew.core.config import AtLeast0, Range, check
from unskew.data.log.split import split
from unskew.data.reading.prepare import prepare
from unskew.update.publish import point
from unskew.world.equations import START, STEP
from unskew.world.kinds import kind_named
from unskew.world.simulate import World, simulate

MATERIALS = (
    "Oak",
    "Linen",
    "Copper",
    "Cotton",
    "Glass",
    "Wool",
    "Steel",
    "Cork",
    "Clay",
    "Paper",
    "Birch",
    "Felt",
)
PRODUCTS = (
    "lamp",
    "chair",
    "kettle",
    "rug",
    "vase",
    "shelf",
    "blanket",
    "clock",
    "tray",
    "mirror",
    "basket",
    "stool",
)
TRAINING = {"epochs": 3, "sample": 1500, "valid_examples": 400}
Chances = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ShopSettings:
    """How large the shop of the playground is."""

    users: Annotated[int, Range(least=20)] = 300
    """The number of users."""
    products: Annotated[int, Range(least=20, most=len(MATERIALS) * len(PRODUCTS))] = 120
    """The number of products."""
    steps: Annotated[int, Range(least=10)] = 80
    """The number of hours of the past, in which exposure follows popularity."""
    seed: AtLeast0 = 0
    """Seed of the world."""


@dataclass(frozen=True)
class Shop:
    """A simulated world with names."""

    settings: ShopSettings

    def __post_init__(self) -> None:
        check(self.settings)

    @cached_property
    def world(self) -> World:
        """The world: exposure depends on popularity alone, and strongly; preference does not depend on it."""
        settings = replace(
            kind_named("popularity"),
            users=self.settings.users,
            items=self.settings.products,
            steps=self.settings.steps,
            impressions=0.15,
            shown=8.0,
            bias=1.5,
            drift=0.2,
            seed=self.settings.seed,
        )
        return simulate(**asdict(settings))

    @cached_property
    def titles(self) -> list[str]:
        """The names of the products."""
        order = np.random.default_rng([self.settings.seed, 1]).permutation(len(MATERIALS) * len(PRODUCTS))
        pairs = (divmod(int(number), len(PRODUCTS)) for number in order[: self.settings.products])
        return [f"{MATERIALS[material]} {PRODUCTS[product]}" for material, product in pairs]

    @cached_property
    def preference(self) -> Chances:
        """The probability that a user likes a product that is shown, when the log ends: users by products.
        Tastes do not change while the playground runs."""
        users, products = np.arange(self.settings.users), np.arange(self.settings.products)
        end = START + STEP * self.settings.steps
        return self.world.preference(users[:, None], products[None, :], end)

    @cached_property
    def clicks(self) -> NDArray[np.int64]:
        """How often each product was clicked in the past."""
        log = self.world.log
        codes = log.item[: log.positives]
        ids = np.array(log.items.ids.to_pylist(), np.int64)
        return np.bincount(ids[codes], minlength=self.settings.products)

    def table(self, end: int) -> pa.Table:
        """The past of the shop as a log that ends at a moment, in seconds since 1970."""
        log = self.world.log
        users, items = (np.array(of.ids.to_pylist(), np.int64) for of in (log.users, log.items))
        item = items[log.item]
        moved = log.time + (end - START - STEP * self.settings.steps)
        return pa.table(
            {
                "user_id": [f"u{number}" for number in users[log.user].tolist()],
                "item_id": [f"p{number}" for number in item.tolist()],
                "timestamp": moved,
                "label": (np.arange(len(log)) < log.positives).astype(np.int8),
                "title": [self.titles[number] for number in item.tolist()],
                "category": [self.titles[number].split()[1] for number in item.tolist()],
            }
        )

    def create(self, folder: Path) -> Path:
        """Write the log, train a run on it, and return the link to the run. What is there already is kept."""
        link = folder / "current"
        if link.is_symlink():
            return link
        folder.mkdir(parents=True, exist_ok=True)
        log = prepare(self.table(int(time.time())), folder / "data", item_features="category")
        model = create_model("pulse", TRAINING | {"seed": self.settings.seed})
        model.fit(split(log), folder / "runs" / "first", show_progress=False)
        model.refit(log, folder / "runs" / "night-0")
        point(link, folder / "runs" / "night-0")
        return link
