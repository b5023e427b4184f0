"""The verb of the demo: what the package does, in two minutes and on 80 columns."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from unskew.cli.shared import Verb, grid, messages, output, verdict_table

if TYPE_CHECKING:
    from unskew.cli.demo_steps import Item, Known, Person, Suggestion, Trained

WIDTH = 80
HALF = WIDTH // 2 - 1  # of two lists side by side, with a gap between them
NEXT = """\
unskew prepare YOUR_LOG.csv --out data         # users, items and times
unskew train data --out run --model pulse
unskew recommend run --user USER --debias 1  # from 0, what will be clicked"""


@dataclass(frozen=True, kw_only=True)
class Demo(Verb):
    """See it work: prepare the demo data, audit it, draw how it is skewed, train some models, recommend films
    to a user, and measure debiasing in a world whose ground truth is known."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("demo")
    """Where the prepared data, the page and the figures go."""

    def run(self) -> None:
        from unskew.cli import demo_steps as demo

        seconds: dict[str, float] = {}
        self.tell(Rule("1. How biased is the log?", align="left"))
        seen, seconds["look"] = demo.timed(lambda: demo.look(self.out))
        checked = sum(finding.checked for finding in seen.findings)
        log = seen.split.log
        self.tell(f"{log.metadata.source}: {log.positives:,} likes of {len(log.users):,} people\n")
        self.tell(verdict_table(seen.inspection))
        for said in seen.inspection.sentences():
            self.tell(said)
        self.tell(f"Leak audit: {checked:,} values checked, no leak.")

        self.tell(Rule("2. Who ranks best what people liked next?", align="left"))
        models, seconds["models"] = demo.timed(lambda: demo.compete(self.out))
        self.tell(models_table(models, demo.RANKED))

        self.tell(Rule("3. What would a user get?", align="left"))
        user = demo.random_user(seen.split)
        person, seconds["person"] = demo.timed(lambda: demo.meet(seen.split, models["Pulse"].model, user))
        self.tell(person_table(person, demo.AT_LEAST, seen.split.repeats))

        self.tell(Rule("4. And in a world whose ground truth is known?", align="left"))
        known, seconds["world"] = demo.timed(lambda: demo.with_ground_truth(self.out))
        self.tell(known_table(known, demo.WORLD.users, demo.WORLD.items))

        document = demo.as_document(models, person, known, seconds)
        results, report = demo.write(self.out, document), demo.report(self.out)
        self.tell(Rule("Next", align="left"))
        console = messages if self.json else output
        pages = f"The page about the log: {seen.page}\nThe report of all models: {report}"
        console.print(f"{pages}\nAll figures: {results}", soft_wrap=True)
        self.tell("With a log of your own:\n")
        self.tell(NEXT)
        self.show(
            seen.inspection.as_dict()
            | {"page": str(seen.page), "leak_free": True}
            | document
            | {"report": str(report)}
        )

    def tell(self, what: RenderableType) -> None:
        """Print something for people to read: beside the JSON document, on standard error."""
        console = messages if self.json else output
        console.print(what, width=min(console.width, WIDTH))


def models_table(models: "dict[str, Trained]", ranked: int) -> RenderableType:
    """NDCG@10 of each model in both tests; the best of each test in bold."""
    made = grid(("NDCG@10", "ordinary: what is next", "balanced: items equal", "CPU s"))
    made.columns[3].justify = "right"
    tests = tuple(next(iter(models.values())).figures)
    best = {test: max(found.figures[test].mean for found in models.values()) for test in tests}
    for name, found in models.items():
        figures = [
            Text(str(found.figures[test]), "bold" if found.figures[test].mean == best[test] else "")
            for test in tests
        ]
        made.add_row(Text(name), *figures, Text(f"{found.seconds:.0f}"))
    about = (
        f"95 % intervals over users, {ranked:,} test rows (a seeded sample), all items ranked. Brief "
        "trainings with one seed and small settings: longer ones can change the order. pulse-zero learned "
        "on other logs and nothing here; its seconds are the choice of its debiasing strength."
    )
    return Group(made, Text(about, "dim"))


def person_table(person: "Person", at_least: int, repeats: bool) -> RenderableType:
    """What a user liked, and two lists side by side."""
    liked = [Text(f"  {titled(item, WIDTH - 2)}") for item in person.newest]
    lists = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("what will be clicked (debias 0)", "without the pull of popularity (1)"):
        lists.add_column(head, width=HALF, no_wrap=True, overflow="ellipsis")
    for place in range(max(len(person.clicked), len(person.fair))):
        sides = (person.clicked, person.fair)
        lists.add_row(*(suggested(place, side[place]) if place < len(side) else "" for side in sides))
    lists.add_row(*(Text(f"liked by {mean_liked(side)} people on average", "bold") for side in sides))
    new = "" if repeats else " and this person has not rated"
    about = (
        f"By Pulse, now, among what at least {at_least} people liked{new}. Because: of the newest 20 that "
        "the person liked, the one that most people liked together with it, for how popular it is."
    )
    return Group(
        Text(f"Person {person.user}, drawn at random, has {person.likes} likes. The newest ones:"),
        *liked,
        Text(""),
        lists,
        Text(about, "dim"),
    )


def suggested(place: int, found: "Suggestion") -> Text:
    """A recommendation in two or three lines."""
    said = Text(f"{place + 1} {titled(found.item, HALF - 2)}")
    if found.item.genres:
        said.append(f"\n  {cut(found.item.genres, HALF - 2)}", "dim")
    if found.because is not None:
        said.append(f"\n  {cut(f'because you liked {found.because.title}', HALF - 2)}", "italic")
    return said


def mean_liked(side: "list[Suggestion]") -> str:
    """How many people liked the items of a list, on average."""
    return f"{sum(found.liked_by for found in side) / max(len(side), 1):.0f}"


def known_table(known: "Known", users: int, items: int) -> RenderableType:
    """NDCG@10 against the true preference, and in a sentence what came out."""
    made = grid(("", "NDCG@10 by what people truly like"))
    best = max(found.mean for found in known.figures.values())
    for name, found in known.figures.items():
        made.add_row(Text(name), Text(str(found), "bold" if found.mean == best else ""))
    about = (
        f"A simulated world of {users:,} people and {items:,} items, in which what is popular is shown more. "
        f"At {known.impressions:,} impressions, all items are ranked; 1 is the true order of preference."
    )
    limits = (
        "One brief training of each, and intervals over users only: with another seed or less data, a "
        "difference can vanish or turn epoch. `unskew ground-truth` measures runs of your own."
    )
    return Group(Text(about, "dim"), made, Text(""), Text(known.sentence, "bold"), Text(limits, "dim"))


def titled(item: "Item", width: int) -> str:
    """A title with its year, cut to a width; the year stays."""
    year = f" ({item.year})" if item.year else ""
    return cut(item.title, width - len(year)) + year


def cut(words: str, width: int) -> str:
    """The words, with an ellipsis where they are too long."""
    made = Text(words)
    made.truncate(width, overflow="ellipsis")
    return made.plain
