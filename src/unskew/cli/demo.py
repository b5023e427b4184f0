"""The verb of the demo: what the package does, in two minutes and on 80 columns."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from unskew.cli.shared import Verb, grid, messages, output, verdict_text

if TYPE_CHECKING:
    from unskew.cli.demo_steps import Estimate, Result, Suggestion, UserLists, WorldResult

WIDTH = 80
HALF = WIDTH // 2 - 1  # of two lists side by side, with a gap between them
NEXT = """\
unskew prepare YOUR_LOG.csv --out data         # users, items and times
unskew train data --out run --model pulse
unskew recommend run --user USER --debias 1    # from 0, what will be clicked"""


@dataclass(frozen=True, kw_only=True)
class Demo(Verb):
    """See it work: prepare the demo data, audit it, draw how it is skewed, train some models, recommend films
    to a user, and measure debiasing in a world whose ground truth is known."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("demo")
    """The folder of the prepared data, the pages and the results."""

    def run(self) -> None:
        from unskew.cli import demo_steps as demo

        seconds: dict[str, float] = {}
        self.tell(Rule("1. How biased is the log?", align="left"))
        with timed(seconds, "inspection"):
            split, inspection, checked = demo.inspect_data(self.out)
        log = split.log
        self.tell(f"{log.metadata.source}: {log.positives:,} likes of {len(log.users):,} users\n")
        self.tell(verdict_text(inspection.verdict()))
        for sentence in inspection.sentences():
            self.tell(sentence)
        self.tell(f"Leak audit: {checked:,} values checked, no leak.")

        self.tell(Rule("2. Which model ranks best what users liked next?", align="left"))
        with timed(seconds, "models"):
            models, model = demo.train_models(self.out)
        self.tell(models_table(models, demo.RANKED))

        self.tell(Rule("3. What would a user get?", align="left"))
        with timed(seconds, "user"):
            lists = demo.recommend_to(split, model, demo.random_user(split))
        self.tell(user_table(lists, demo.MIN_AUDIENCE, split.repeats))

        self.tell(Rule("4. And in a world whose ground truth is known?", align="left"))
        with timed(seconds, "world"):
            world = demo.compare_with_ground_truth(self.out)
        self.tell(world_table(world, demo.WORLD.users, demo.WORLD.items))

        self.tell(Rule("Next", align="left"))
        page, report, results = (self.out / name for name in ("bias.html", "report.html", "results.json"))
        demo.write_report(self.out, report)
        document = {
            "results": {name: asdict(result) for name, result in models.items()},
            "protocol": "full",
            "sample": demo.RANKED,
            "user": asdict(lists),
            "ground-truth": asdict(world) | {"world": asdict(demo.WORLD), "sentence": world.sentence()},
            "cpu_seconds": seconds,
        }
        results.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        files = f"The page about the log: {page}\nThe report of all models: {report}\nAll results: {results}"
        (messages if self.json else output).print(files, soft_wrap=True)
        self.tell(f"With a log of your own:\n\n{NEXT}")
        pages = {"page": str(page), "leak_free": True, "report": str(report)}
        self.show(inspection.as_dict() | document | pages)

    def tell(self, content: RenderableType) -> None:
        """Print something to read: with --json on standard error, beside the document."""
        console = messages if self.json else output
        console.print(content, width=min(console.width, WIDTH))


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Note the CPU-seconds of a step."""
    start = time.process_time()
    yield
    seconds[step] = round(time.process_time() - start, 1)


def models_table(models: "dict[str, Result]", ranked: int) -> RenderableType:
    """NDCG@10 of each model in both tests; the best of each test in bold."""
    table = grid(("NDCG@10", "ordinary: what is next", "balanced: items equal", "CPU s"))
    table.columns[3].justify = "right"
    columns = [in_bold([of.ndcg[test] for of in models.values()]) for test in ("ordinary", "balanced")]
    for (name, result), *cells in zip(models.items(), *columns, strict=True):
        table.add_row(Text(name), *cells, Text(f"{result.cpu_seconds:.0f}"))
    notes = (
        f"95 % intervals over users, {ranked:,} test rows (a seeded sample), all items ranked. Brief "
        "trainings with one seed and small settings: longer ones can change the order. pulse-zero was "
        "trained on other logs; its seconds are for the choice of its debiasing strength."
    )
    return Group(table, Text(notes, "dim"))


def in_bold(estimates: "Sequence[Estimate]") -> list[Text]:
    """Estimates, the best of them in bold."""
    best = max(estimate.mean for estimate in estimates)
    return [Text(str(estimate), "bold" if estimate.mean == best else "") for estimate in estimates]


def user_table(lists: "UserLists", min_audience: int, repeats: bool) -> RenderableType:
    """What a user liked, and two lists side by side."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    sides = lists.clicked, lists.fair
    for head in ("what will be clicked (debias 0)", "with equal exposure (debias 1)"):
        table.add_column(head, width=HALF, no_wrap=True, overflow="ellipsis")
    columns = (map(suggested, range(1, len(side) + 1), side) for side in sides)
    for row in zip_longest(*columns, fillvalue=Text()):
        table.add_row(*row)
    means = (sum(each.liked_by for each in side) / max(len(side), 1) for side in sides)
    table.add_row(*(Text(f"liked by {mean:.0f} users on average", "bold") for mean in means))
    new = "" if repeats else " and this user has not rated"
    notes = (
        f"By Pulse, now, among what at least {min_audience} users liked{new}. Because: of the newest 20 "
        "liked items, the one that most users liked together with the recommended one, for its popularity."
    )
    return Group(
        Text(f"User {lists.user}, drawn at random, has {lists.likes} likes. The newest ones:"),
        *(Text(f"  {title}", no_wrap=True, overflow="ellipsis") for title in lists.newest),
        Text(""),
        table,
        Text(notes, "dim"),
    )


def suggested(rank: int, suggestion: "Suggestion") -> Text:
    """A recommendation in two or three lines, each cut where the column ends."""
    text = Text(f"{rank} {suggestion.title}")
    if suggestion.genres:
        text.append(f"\n  {suggestion.genres}", "dim")
    if suggestion.reason is not None:
        text.append(f"\n  because you liked {suggestion.reason}", "italic")
    return text


def world_table(world: "WorldResult", users: int, items: int) -> RenderableType:
    """NDCG@10 against the true preferences, and the result in a sentence."""
    table = grid(("", "NDCG@10 by the true preferences"))
    for name, cell in zip(world.ndcg, in_bold(list(world.ndcg.values())), strict=True):
        table.add_row(Text(name), cell)
    notes = (
        f"A simulated world of {users:,} users and {items:,} items, in which popular items are shown more. "
        f"At {world.impressions:,} impressions, all items are ranked; 1 is the true order of preference."
    )
    limits = (
        "One brief training of each, and intervals over users only: with another seed or less data, a "
        "difference can vanish or change its sign. `unskew ground-truth` measures runs of your own."
    )
    return Group(Text(notes, "dim"), table, Text(""), Text(world.sentence(), "bold"), Text(limits, "dim"))
