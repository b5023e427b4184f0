"""The verb evaluate, along the time line, too."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from tyro.conf import Positional

from unskew.cli.shared import (
    File,
    MovedData,
    OnDevice,
    RunArg,
    RunVerb,
    notify,
    pairs,
    split_of_run,
    table,
    together,
)
from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.core.formatting import plain
from unskew.core.ranks import ranks
from unskew.data.log.held_out import Criterion, Protocol, Targets
from unskew.data.log.split import Split

if TYPE_CHECKING:
    from unskew.api.model import Model

RANKED = 50_000  # test positives, unless --sample says otherwise


@dataclass(frozen=True, kw_only=True)
class Evaluate(OnDevice, RunVerb):
    """Rank the test set with a trained run, under one protocol, and show the metrics with their
    intervals."""

    folder: Positional[RunArg]
    protocol: Protocol = "full"
    """How each positive is ranked. full: among the whole catalogue. uni100: among 100 uniformly drawn
    items. authors: the same, pooled by user, as the paper's tables are."""
    test: str | None = None
    """Which test of the held-out part: ordinary (every row counts once), balanced (every item counts once),
    shown (among what the same impression showed), randomised, weighted (by logged propensities), untouched
    (without a context event on the item within 24 hours before; untouched:2h says another time), authors (the
    paper's resampling), or one that the log names. By default ordinary, and authors with that protocol."""
    data: MovedData = None
    sample: int | Literal["auto", "all"] = "auto"
    """Rank a fixed, seeded sample of so many positives, or all of them; their weights come from the whole
    test. `auto` is all of them up to 50,000, and a sample of 50,000 where there are more."""
    seed: int = 0
    """Seed of the sample, of the drawn candidates and of the authors' resampling."""
    cutoffs: tuple[int, ...] = (5, 10, 20)
    """The K of NDCG@K, HR@K and MRR@K."""
    select_by: Criterion | None = None
    """Which validation metric chose the weights used; by default the test's own, if it has one."""
    frozen: bool = False
    """Make one list for each user at the beginning of the test set, from what happened before, as a nightly
    job does. By default the evaluation is live: all that happened strictly before each positive is read."""
    targets: Targets = "next"
    """With --frozen: the next positive of each user, or all later ones."""
    save: File = None
    """Also write every ranked row with its values as a Parquet file, for `unskew compare`."""
    rolling: Annotated[str | None, tyro.conf.arg(metavar="WINDOW")] = None
    """Evaluate window by window along the time line instead: a duration such as 7d, 12h or 1w."""
    refresh: str = "never"
    """With --rolling: train the model again before each window (`each`), whenever so much time has passed
    (such as 1w), or `never`."""
    windows: int | None = None
    """With --rolling: evaluate only so many windows, at the end of the log."""

    def run(self) -> None:
        with together():
            self._run()

    def _run(self) -> None:
        from unskew.api.create import load
        from unskew.evaluation.metrics import METRICS
        from unskew.evaluation.significance import interval

        self.use_device()
        trained, cut = load(self.folder), split_of_run(self.folder, self.data)
        if self.rolling is not None:
            return self._roll(trained, cut)
        if self.sample == "auto":
            _say_cost(cut)
        if self.refresh != "never" or self.windows is not None:
            raise BadInput("--refresh and --windows go with --rolling WINDOW")
        found = trained.evaluate(
            cut,
            self.protocol,
            self.test,
            sample=self._size(),
            seed=self.seed,
            cutoffs=self.cutoffs,
            select_by=self.select_by,
            frozen=self.frozen,
            targets=self.targets,
        )
        if not ranks().is_first:
            return None
        if self.save is not None:
            found.save(self.save)
        intervals = {name: interval(found, name, 300) for name in found.values}
        shown = [
            (name, f"{found.mean(name):.4f}", f"{low:.4f} - {high:.4f}")
            for name, (low, high) in intervals.items()
        ]
        metric = f"{next(iter(METRICS))}@{10 if 10 in self.cutoffs else self.cutoffs[0]}"
        groups = []
        for segment, parts in found.by_segment().items():
            for group, of in parts.items():
                mean = f"{of[metric]:.4f}" if metric in of else "–"
                groups.append((segment, group, f"{of['units']:,}", f"{of['fraction']:.0%}", mean))
        about = found.about
        title = f"{trained.name}, {found.test} test, protocol {found.protocol}, {about['reads']}"
        sampled = f" (a sample of {about['whole_test']:,})" if about["sample"] is not None else ""
        left_out = [f"{count:,} {why.replace('_', ' ')}" for why, count in about["left_out"].items() if count]
        facts = {
            "units": f"{len(found.user):,}{sampled}",
            "effective sample size": round(found.effective_sample_size),
            **{name: about[name] for name in ("split", "ties", "repeats")},
            "left out": ", ".join(left_out) or "nothing",
            "weights chosen by": about["weights_chosen_by"],
        }
        if "touched" in about:
            facts["touched before"] = _touched(about["touched"])
        if not about["finished"]:
            facts["training"] = "not finished: a validation metric was still rising"
        document = {"run": str(self.folder), **plain(found.as_dict()), "intervals": plain(intervals)}
        self.show(
            document,
            pairs(title, facts),
            table("", ("", "mean", "95 % interval over users"), shown),
            table("", ("segment", "", "units", "weight", metric), groups),
        )
        return None

    def _size(self) -> int | None:
        """How many positives are ranked at most; None is all of them."""
        return RANKED if self.sample == "auto" else None if self.sample == "all" else self.sample

    def _roll(self, trained: "Model", cut: Split) -> None:
        from unskew.evaluation.rolling import rolling

        if self.save is not None or self.select_by is not None:
            raise BadInput("--save and --select-by do not go with --rolling")
        if self.frozen:
            raise BadInput("--frozen makes all lists at one moment: it does not go with --rolling")
        assert self.rolling is not None
        asked = self.rolling, self.refresh, self.protocol, self.test, self._size(), self.seed, self.windows
        found = rolling(trained, cut, *asked)
        metrics = [f"{name}@10" for name in ("ndcg", "hr", "mrr")]
        document = found.as_dict()
        rows = []
        for part in document["windows"]:
            means = (f"{part['metrics'][name]:.4f}" if part["units"] else "–" for name in metrics)
            rows.append((str(part["start"]), f"{part['units']:,}", *means))
        mean = {name: found.mean(name) for name in metrics}
        rows.append(("all windows", "", *(f"{value:.4f}" for value in mean.values())))
        test, protocol, repeats = (document.get(name) for name in ("test", "protocol", "repeats"))
        title = (
            f"{trained.name}, windows of {self.rolling}, refresh {self.refresh}; {test} test, protocol "
            f"{protocol}, repeats {repeats}"
        )
        document |= {"run": str(self.folder), "metrics": mean}
        self.show(plain(document), table(title, ("from", "units", *metrics), rows))


def _say_cost(cut: Split) -> None:
    """Say so, if not all positives are ranked."""
    positives = int(np.count_nonzero(cut.mask("test") & (cut.log.label == 1)))
    if positives > RANKED:
        notify(
            f"ranks a sample of {RANKED:,} of {positives:,} test positives among {len(cut.log.items):,} "
            f"items; --sample all ranks all of them and takes {positives / RANKED:.0f} times as long"
        )


def _touched(near: Document) -> str:
    """How many targets had a context event on the item shortly before."""
    minutes = near["median_minutes"]
    median = "" if minutes is None else f", median {minutes:.0f} minutes before"
    return f"{near['fraction']:.1%} of the targets, within {near['within']}{median}"
