"""The verbs of stored runs: recommend from one, and list the models that can be trained."""

from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from unskew.cli.shared import File, OnDevice, RunVerb, notify, pairs, table
from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.core.storage import address_of
from unskew.data.log.held_out import Criterion
from unskew.data.log.log import Log
from unskew.recommendation.options import Cold, Explain, RecommendKeywords
from unskew.recommendation.rules import read_rule_sets

if TYPE_CHECKING:
    from unskew.api.model import Model
    from unskew.recommendation.ann import Recall
    from unskew.recommendation.ranker import Recommendations, Saved

# A flag that takes several ids and may be given several times.
Items = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="ITEM [ITEM ...]")
]
Times = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TIME [TIME ...]")
]

MOST_REASONS = 3  # that are printed for each item


@dataclass(frozen=True, kw_only=True)
class Recommend(OnDevice, RunVerb):
    """Recommend the best items for a user, after a history of item ids, for all users, or for a file of
    users or histories, from a stored run.

    A run remembers every user's history, so it needs no data; `--data` brings what happened since. Without a
    run, a prepared log is enough: then the weights that come with this package recommend (`pulse-zero`).
    """

    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """A folder that `unskew train` made, or one that `unskew prepare` made."""
    history: Items = ()
    """Recommend after these items, oldest first: one after the other, or the flag once per item."""
    times: Times = ()
    """When each item of --history was: as many ISO dates, or ticks of the log's clock, in the same order.
    Without times, all items count as just past."""
    user: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None
    """Recommend for this user of the log."""
    all_users: bool = False
    """Recommend for every user of the log and write the lists to the file --out."""
    input: File = None
    """Recommend for each row of a file, CSV, Parquet or JSON lines, and write the lists to the file --out. A
    row is a user_id, or a history of item ids, oldest first, with times if there are any; in CSV a history
    is a JSON list. The file is read block by block, so it may be of any length."""
    out: File = None
    """Where the lists of --all-users and --input go: Parquet, or CSV or JSON lines if the name ends with .csv
    or .jsonl. With --shard, a folder."""
    shard: Annotated[str | None, tyro.conf.arg(metavar="I/N")] = None
    """With --all-users: write only the parts of shard I of N, from 0, to the folder --out. A part that is
    there is not made again. `auto` takes I and N from RANK and WORLD_SIZE, as torchrun sets them; `auto/N`
    takes I from RANK or from JOB_COMPLETION_INDEX, as an indexed Kubernetes job sets it."""
    k: int = 10
    """How many items are recommended."""
    include_seen: bool | None = None
    """Whether items of the history can be recommended again; by default as in the evaluation of this run."""
    candidate: Items = ()
    """Recommend only these items: one after the other, or the flag once per item."""
    candidates: File = None
    """Recommend only the items of this file: CSV, Parquet or JSON lines with a column item_id, or text with
    an id on each line."""
    exclude: Items = ()
    """Do not recommend these items: one after the other, or the flag once per item."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="DATA")] = None
    """A prepared folder with a newer log, which continues the one that the run was trained on."""
    debias: float | None = None
    """From 0 (what will be clicked) to 1 (what would be, if all items were exposed equally), for models that
    have a debiasing strength; by default what the validation set chose."""
    at: str | None = None
    """The moment of the request, as an ISO date or in ticks of the log's clock: what happened later does not
    count. By default it is just after the newest event."""
    diverse: float = 0.0
    """From 0 (the best items) to 1 (items that are as unlike each other as can be): maximal marginal
    relevance."""
    rule: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="RULE")] = ()
    """A business rule, such as "category in [shoes, hats]", "exclude price >= 50", "at most 2 per brand", "at
    least 30% new = true" or "pin B_359 at 1"; the flag may be given several times."""
    rules: File = None
    """A file of named sets of rules, TOML or JSON, such as `front_page = ["price < 50"]`."""
    rule_set: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The set of --rules that holds; by default the one that is called `default`."""
    explain: bool = False
    """Say why each item is listed: the parts of its score, from what the network read. Of the models, Pulse
    has them."""
    cold: Cold = "model"
    """How items are scored that nobody has had yet: by the model, or by their content, which is what the
    features and an item feed say of them."""
    approximate: bool = False
    """Let an index propose the items that are scored, for catalogues of 100,000 items and more (extra `ann`).
    Which fraction of the exact lists it finds is measured and printed."""
    select_by: Criterion | None = None
    """Which validation metric chose the weights that recommend; by default the one that the training settings
    name."""

    def run(self) -> None:
        many = self.all_users or self.input is not None
        if sum((self.user is not None, bool(self.history), self.all_users, self.input is not None)) != 1:
            raise BadInput("expected one of --user ID, --history ITEM ..., --input FILE, and --all-users")
        if self.times and not self.history:
            raise BadInput("times: they are those of --history, so they go with it", field="times")
        if many != (self.out is not None):
            raise BadInput("--all-users and --input FILE write to a file, so they go with --out FILE")
        if self.shard is not None and not self.all_users:
            raise BadInput("--shard cuts the users of the log, so it goes with --all-users", field="shard")
        from unskew.api.create import load

        self.use_device()
        log = None if self.data is None else Log.open(self.data)
        if (self.folder / "data.json").is_file():
            trained, log = load("pulse-zero"), log or Log.open(self.folder)
            notify(
                f"not trained on this log: pulse-zero recommends; `unskew train {self.folder} --out RUN` "
                "learns from it"
            )
        else:
            trained = load(self.folder)
        if self.select_by is not None:
            trained.chosen_by(self.select_by)
        options: RecommendKeywords = {
            "k": self.k,
            "include_seen": self.include_seen,
            "candidates": self._candidates(),
            "exclude": list(chain(*self.exclude)),
            "debias": self.debias,
            "at": self.at,
            "diverse": self.diverse,
            "rules": (*self.rule, *self._rule_set()),
            "cold": self.cold,
            "explain": Explain(self.explain),
            "approximate": self.approximate,
        }
        if self.out is not None:
            self._save(self.out, trained, log, options)
            return
        if self.user is not None:
            lists = trained.recommend([self.user], log=log, **options)
        else:
            lists = trained.recommend(histories=[self._history()], log=log, **options)
        self._print(lists, trained.name)

    def _history(self) -> list[Any]:
        """The items of --history, with their times if there are any."""
        items, times = list(chain(*self.history)), list(chain(*self.times))
        if times and len(times) != len(items):
            raise BadInput(
                f"times: {len(times)} for {len(items)} items; expected as many as --history has",
                field="times",
            )
        return list(zip(items, times, strict=True)) if times else items

    def _save(self, out: Path, trained: "Model", log: Log | None, options: RecommendKeywords) -> None:
        """Write the lists of many."""
        document: Document = {"file" if self.shard is None else "folder": str(address_of(out) or out)}
        if self.shard is not None:
            saved: Saved = trained.save_recommendation_parts(out, shard=self.shard, log=log, **options)
            document["shard"] = self.shard
        else:
            saved = trained.save_recommendations(out, self.input, log=log, **options)
        counted = {name: value for name, value in asdict(saved).items() if name != "recall"}
        document |= counted | {"k": self.k} | _measured(saved.recall)
        if self.all_users:
            document["users"] = saved.lists
        self.show(document, pairs(f"{self.folder} -> {address_of(out) or out}", document))

    def _candidates(self) -> list[Any] | None:
        ids = list(chain(*self.candidate))
        if self.candidates is not None:
            from unskew.recommendation.batch_requests import read_candidates

            ids += read_candidates(self.candidates)
        return ids if ids or self.candidates is not None else None

    def _rule_set(self) -> tuple[str, ...]:
        if self.rules is None and self.rule_set is not None:
            raise BadInput("--rule-set names a set of a file, so it goes with --rules FILE", field="rule_set")
        return () if self.rules is None else read_rule_sets(self.rules).named(self.rule_set)

    def _print(self, lists: "Recommendations", model: str) -> None:
        listed = lists.table.to_pylist()
        titled = ["title"] if "title" in lists.table.column_names else []
        shown = []
        for row in listed:
            title = ["" if row[name] is None else row[name] for name in titled]
            because = [_because(row["because"])] if self.explain else []
            shown.append((str(row["rank"]), str(row["item_id"]), f"{row['score']:.4f}", *title, *because))
        document = {"recommendations": listed, "unknown_users": lists.unknown_users}
        document |= {"skipped_items": lists.skipped_items} | _measured(lists.recall)
        self.show(document, table("", ("rank", "item", "score", *titled, *["because"] * self.explain), shown))
        for user in lists.users_unknown:
            notify(f"user {user!r} is not in the log, so this is what an empty history gets")
        if "pulse-zero" in lists.table["source"].to_pylist() and model != "pulse-zero":
            notify(f"{model} has nothing to say about this history, so pulse-zero recommends")
        if lists.items_unknown:
            unknown = ", ".join(map(repr, lists.items_unknown))
            notify(f"skipped, not in the log of this run: {unknown}")


def _because(reasons: list[Document]) -> str:
    """The largest parts of a score, in words."""
    return "; ".join(f"{reason['text']} ({reason['part']:+.2f})" for reason in reasons[1 : 1 + MOST_REASONS])


def _measured(recall: "Recall | None") -> Document:
    """Say how good approximate lists are, and return it for the document."""
    if recall is None:
        return {}
    notify(str(recall))
    return {"recall": recall.fraction, "recall_histories": recall.histories}


@dataclass(frozen=True, kw_only=True)
class Models(RunVerb):
    """List all models with their papers and settings."""

    def run(self) -> None:
        from unskew.models.base import MODELS, Training
        from unskew.models.debiased import Weighting

        rows, listed = [], {}
        for name, kind in sorted(MODELS.items()):
            config, training = asdict(kind.Config()), asdict(Training(**kind.recipe))
            listed[name] = {
                "paper": kind.paper,
                "config": config,
                "training": training,
                "presets": kind.presets,
            }
            rows.append((name, kind.paper, _defaults(kind.Config), ", ".join(kind.presets)))
        any_of_them = "any of them, weighted by inverse propensities (Xu et al., CIKM 2022)"
        rows.append(("debiased-MODEL", any_of_them, _defaults(Weighting), ""))
        with_events = "a model of next items that reads context events in its history"
        rows.append(("context-MODEL", with_events, "those of MODEL", ""))
        document = {
            "models": listed,
            "context": {"paper": with_events},
            "debiased": {"paper": any_of_them, "config": asdict(Weighting())},
        }
        self.show(document, table("", ("model", "paper", "settings", "presets"), rows))


def _defaults(settings: Any) -> str:
    return ", ".join(f"{field.name} {field.default}" for field in fields(settings))
