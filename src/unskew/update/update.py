"""Train on from a stored run with the events that a store got since, and publish the result unless it is
significantly worse.

    outcome = update("runs/1", "events.db", out="runs/2", current="current")

Test, then train. The newest window of the new events is ranked by the run as it is and by a candidate, which
has learned from everything before the window. Both read the same log, and what happened in the window before
each request is known to both. The rows that are ranked are those that the run did not choose itself
(`judge.py`, which also has the rule). If the candidate is not significantly worse, it learns from the window,
too, is ranked once more, and is written as a new run. A model in which nothing belongs to a user or an item
has nothing to learn from the window, so the candidate itself is written.
"""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unskew.core.atomic_files import check_free
from unskew.core.config import Document, check, parse_json
from unskew.core.errors import BadInput, NothingToRank
from unskew.core.progress import shown
from unskew.data.log.erasures import IN_RUN, add_erasures
from unskew.data.log.held_out import available_tests
from unskew.data.log.log import Log
from unskew.data.log.split import Mask, Split, Splitting, split_at
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.evaluate_many import evaluations
from unskew.evaluation.significance import compare
from unskew.models.base import Recommender
from unskew.serve.store.store import Store, open_store
from unskew.training.erase import BASE, run_erasures
from unskew.training.extend import CodeMapping, ExtendedNetwork, Learned, extend_network, resume_training
from unskew.training.run import (
    CHECKPOINT,
    RunFolder,
    load,
    read_card,
    read_checkpoint,
    read_config,
    read_records,
)
from unskew.training.run_card import RunCard, SplitSummary, StoreSummary, UpdateSummary, chosen_settings
from unskew.training.run_config import RunConfig
from unskew.training.trainer import METRIC, Trainer
from unskew.update import Updating
from unskew.update.judge import JudgedSplit, JudgingRows, Tested, select_evidence, truncated
from unskew.update.merged import StorePosition, base_of, merged
from unskew.update.publish import check_pointer, new_run, one_at_a_time, point

NEWEST = 0.2  # the fraction of the new positives that are the window, unless it is given
FIRST = 1000  # rows of the window that are ranked first; all of the sample only if these notice too little
REFUSED = "refused.json"  # in the folder of a run: up to which event the last update of it was refused
Verdict = Literal["published", "forced", "would be published", "would be forced", "nothing new", "worse"]


class Window(NamedTuple):
    """When the window begins, and which of its rows judge."""

    start: int
    judging: JudgingRows


@dataclass(frozen=True)
class Outcome:
    """What an update came to."""

    verdict: Verdict
    why: str  # one sentence
    run: Path  # that was updated
    out: Path | None = None  # the new run, if one was written
    new_positives: int = 0
    tested: Tested | None = None
    notes: tuple[str, ...] = ()  # what a user should know

    def document(self) -> Document:
        """Everything, ready for JSON."""
        document: Document = {"verdict": self.verdict, "why": self.why, "run": str(self.run)}
        document |= {"out": None if self.out is None else str(self.out), "new_positives": self.new_positives}
        return document | {
            "window": None if self.tested is None else self.tested.document(),
            "notes": list(self.notes),
        }


def update(
    run: str | os.PathLike[str],
    store: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    settings: Updating | None = None,
    *,
    current: str | os.PathLike[str] | None = None,
    positive: Sequence[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    segments: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    show_progress: bool = True,
) -> Outcome:
    """Train on from a run with what a store got since, and write the result unless it is significantly worse.

    run: the folder of a finished run, or a link to one.
    out: the folder of the new run, which must not be there yet. It is whole or absent.
    current: a link that points to the new run once it is whole.
    positive: the types of events that are positive, if they are to be others than the store's own.
    data: where the data of the run is, if it has moved.
    segments: the folder of compacted rows, if the store is in PostgreSQL.
    force: write the new run even if it is significantly worse; its card then says so.
    dry_run: train, compare and write nothing.
    """
    settings, folder = settings or Updating(), Path(run).resolve()
    check(settings)
    config = read_config(Path(run))
    if not (folder / "card.json").is_file():
        raise BadInput(f"{run}: this run is not finished; finish it with `unskew train --resume {run}`")
    target, link = (None if path is None else Path(path) for path in (out, current))
    if target is None and not dry_run:
        raise BadInput("expected --out NEW, the folder of the new run (or --dry-run)")
    with ExitStack() as stack:
        if target is not None and not dry_run:
            check_free(target)
            if link is not None:
                check_pointer(link)
            stack.enter_context(one_at_a_time(link or target.with_name("update")))
        opened = stack.enter_context(open_store(store, "read", segments=segments))
        stack.enter_context(shown(show_progress))
        return _Update(folder, config, settings).run(
            opened, positive, None if data is None else Path(data), None if dry_run else target, link, force
        )


class _Update:
    """One update, step by step."""

    def __init__(self, folder: Path, config: RunConfig, settings: Updating) -> None:
        self.folder, self.config, self.settings = folder, config, settings
        self.training, self.card = config.training, read_card(folder)
        self.notes: list[str] = []

    def run(
        self,
        store: Store,
        positive: Sequence[str] | None,
        data: Path | None,
        target: Path | None,
        link: Path | None,
        force: bool,
    ) -> Outcome:
        """From a store to a new run, or to the reason why there is none."""
        self.old = load(self.folder)
        self.after = StorePosition() if self.card.store is None else StorePosition(**self.card.store.learned)
        if too_few := self._nothing_new(store, positive) or ("" if force else self._refused(store, positive)):
            return Outcome("nothing new", too_few, self.folder)
        # Also those whom a copy of the data or of the run from before an erasure has brought back.
        self.erasures = run_erasures(self.folder).joined(store.erasures())
        self.base = base_of(self.folder, self.config, self.card, self.old.log, data).without(self.erasures)
        if self.base.remembered:
            self.notes.append(
                "the data of this run is gone, so its memory is used, which has all positives and nothing of "
                "what was shown; --data says where the data is"
            )
        self.merged = merged(self.base, store, self.after, positive)
        window = self._window()
        if isinstance(window, str):
            return Outcome("nothing new", window, self.folder)
        trainers, tested = self._candidate(window)
        if force or not tested.is_worse:
            trainers, tested = self._learn_window(trainers[0], window, tested)
        verdict = _verdict(tested.is_worse, force, target is not None)
        new_positives = int(self.merged.fresh[: self.log.positives].sum())
        why = "significantly worse on the newest window" if tested.is_worse else "not significantly worse"
        outcome = Outcome(verdict, why, self.folder, target, new_positives, tested, tuple(self.notes))
        if verdict == "worse" and target is not None:
            refusal = json.dumps({"store": store.name, "events": self.merged.newest.events})
            RunFolder(self.folder).replace(REFUSED, lambda path: path.write_text(refusal, encoding="utf-8"))
        if target is None or verdict == "worse":
            return replace(outcome, out=None)
        self._publish(trainers, window, store.name, tested, verdict == "forced", target)
        if link is not None:
            point(link, target)
        return outcome

    @property
    def log(self) -> Log:
        """The run's own log and the store as one."""
        return self.merged.log

    # Is there enough to do?

    def _refused(self, store: Store, positive: Sequence[str] | None) -> str:
        """Why a refusal still holds; empty if there was none, or if enough has happened since. Whoever tests
        again after every event publishes a worse run by chance."""
        try:
            refusal = parse_json((self.folder / REFUSED).read_text(encoding="utf-8"))
            store_name, events = refusal["store"], int(refusal["events"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        if store_name != store.name:
            return ""
        counts = self._counts(store, events)
        new = sum(counts.get(kind, 0) for kind in positive or store.types.positive)
        if new >= self.settings.least:
            return ""
        return (
            f"an update was refused {new:,} positives ago; the next one waits for {self.settings.least:,} of "
            "them (--least says how many; --force does not wait)"
        )

    def _counts(self, store: Store, after: int) -> dict[str, int]:
        """How many events of each type came after a sequence number."""
        counts = dict[str, int]()
        for frame in store.events(after):
            for entry in pc.value_counts(frame["type"]).to_pylist():
                counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
        return counts

    def _nothing_new(self, store: Store, positive: Sequence[str] | None) -> str:
        """Why there is nothing to do, from the events alone; empty if there may be something."""
        newest, least = store.state().newest, 2 * self.settings.least
        if newest < self.after.events:
            raise BadInput(
                f"{store.name}: has {newest:,} events so far, and this run has learned from "
                f"{self.after.events:,} of its store; is it another store?"
            )
        counts = self._counts(store, self.after.events)
        if not counts:
            return "no new events"
        types = list(positive or store.types.positive)
        positives = sum(counts.get(kind, 0) for kind in types)
        if not positives and not self.after.events:
            listed = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(counts.items()))
            raise BadInput(
                f"{store.name}: no event is of a positive type ({', '.join(types)}); there are {listed}: "
                "say which are positive (--positive TYPE,TYPE)"
            )
        if positives < least:
            return f"{positives:,} new positives; an update waits for {least:,} (--least says how many)"
        return ""

    def _window(self) -> Window | str:
        """The window, which must be after everything that the run has seen; or why there is none."""
        card, settings, log = self.card, self.settings, self.log
        seen = max(self.base.now, self.merged.learned_until) if card.updated else card.split.valid_end
        is_new = self.merged.fresh & (log.label == 1) & (log.time >= seen)
        new = int(is_new.sum())
        if new < 2 * settings.least:
            words = f"{new:,} new positives are newer than what this run has seen; an update waits for "
            return f"{words}{2 * settings.least:,} (--least says how many)"
        judging = select_evidence(log, settings.judge, is_new, settings.least)
        if judging is None:
            return (
                f"too few of {new:,} new positives can judge (--judge {settings.judge}): the others answer "
                f"lists of the run that they would judge; an update waits for {settings.least:,} that no "
                "recommendation chose (serve --explore makes some; --judge all takes every positive)"
            )
        times = np.sort(log.time[is_new & judging.mask])
        if settings.window is None:
            start = int(times[-max(int(NEWEST * len(times)), settings.least)])
        else:
            start = max(int(times[-1]) + 1 - self.base.clock.ticks_in(settings.window), seen)
        inside = int((times >= start).sum())
        if inside < settings.least:
            raise BadInput(
                f"window {settings.window}: has {inside:,} new positives that judge; expected at least "
                f"{settings.least:,} (--least), so take a longer one"
            )
        if not (is_new & (log.time < start)).any():
            raise BadInput(
                "all new positives are in the window, and none is left to learn from before it; take a "
                "shorter one (--window)"
            )
        return Window(start, judging)

    # Test, then train

    def _cut(self, end: int) -> Split:
        """Everything before a time is the training set, and the rest is the test set."""
        cut = self.card.split
        settings = Splitting(
            fractions=(100, 0, 0), repeats="keep" if cut.repeats else "hide", min_count=cut.min_count
        )
        return split_at(self.log, settings, end, end)

    def _candidate(self, window: Window) -> tuple[list[Trainer], Tested]:
        """What has learned from everything before the window, compared with the run as it is."""
        split, old = self._cut(window.start), self.old
        moves = CodeMapping.between(old.log, self.log)
        as_it_is = extend_network(old.network, split.known, moves).network
        trainer = self._train_on(
            extend_network(old.network, split.known, moves), self._before(), split, self._fresh()
        )
        trainer.model.share_readings(as_it_is, split)
        tested = self._test(as_it_is, trainer.model, window, min(FIRST, self.settings.sample))
        if len(tested.before.user) == FIRST and (needed := min(tested.needed, self.settings.sample)) > FIRST:
            tested = self._test(as_it_is, trainer.model, window, needed)
        return [trainer], tested

    def _test(self, as_it_is: Recommender, candidate: Recommender, window: Window, sample: int) -> Tested:
        """The run and the candidate on so many rows of the window. How many are enough depends on the spread
        of the differences alone, and not on their mean."""
        before, after = (self._evaluate(network, window, sample) for network in (as_it_is, candidate))
        found = compare(after, before, METRIC)
        return Tested(
            before.test, window.judging.evidence, before, after, found, self.settings.margin, sample
        )

    def _learn_window(
        self, candidate: Trainer, window: Window, tested: Tested
    ) -> tuple[list[Trainer], Tested]:
        """The candidate after it has learned from the window, too, ranked once more. These rows are then
        among what it has learned from, so this only detects that the training has done damage."""
        if candidate.model.is_free_of_ids:
            return [candidate], tested
        split, fresh = self._cut(self.log.now), np.asarray(self.log.time >= window.start)
        positives = self.merged.fresh & (self.log.label == 1)
        earlier = max(int((positives & ~fresh).sum()), 1)
        learned = Learned.of(candidate.model, *candidate.state())
        extended = extend_network(candidate.model, split.known, CodeMapping.none(self.log))
        due = min(int((positives & fresh).sum()) / earlier, 1.0)  # as much replay per new row as before
        trainer = self._train_on(extended, learned, split, fresh, due)
        ranked = self._evaluate(trainer.model, window, tested.sample)
        published = compare(ranked, tested.before, METRIC)
        return [candidate, trainer], tested._replace(published=published)

    def _before(self) -> Learned:
        """Where the training of the run was."""
        path, network = self.folder / CHECKPOINT, self.old.network
        if not network.stages(1):
            return Learned.nothing()
        if not path.is_file():
            self.notes.append("this run has no checkpoint, so its optimiser starts again")
            return Learned.nothing()
        return Learned.of(network, *read_checkpoint(path))

    def _fresh(self) -> Mask:
        """The rows that the run has not learned from: those of the store since, and what it held out."""
        held_out = np.zeros(len(self.log), bool)
        if self.card.updated is None:
            held_out = np.asarray(self.log.time >= self.card.split.train_end)
        return self.merged.fresh | held_out

    def _train_on(
        self, extended: ExtendedNetwork, learned: Learned, split: Split, fresh: Mask, replayed: float = 1.0
    ) -> Trainer:
        """A grown network after it has learned from the fresh rows before the end of training.

        replayed: the part of the replay that is due.
        """
        settings, network = self.settings, extended.network
        chosen = chosen_settings(network, network.state_dict())
        network.refresh_statistics(split)
        trainer = resume_training(
            network,
            learned.moved(extended.rows),
            split,
            fresh,
            self.training,
            settings.epochs,
            settings.replay * replayed,
            chosen,
        )
        trainer.run()
        return trainer

    def _evaluate(self, network: Recommender, window: Window, sample: int) -> Evaluation:
        """The rows of the window that judge, ranked with everything before each of them known."""
        split = JudgedSplit.of(self._cut(window.start), window.judging)
        test = self.card.select_by
        if test not in available_tests(split) or (test == "shown" and window.judging.evidence != "all"):
            test = "ordinary"
        try:
            by_test = evaluations(
                network,
                {test: network.state_dict()},
                split,
                {test: ("full",)},
                {test: test},
                sample=sample,
                seed=self.training.seed,
            )
        except NothingToRank as error:
            raise NothingToRank(
                f"the window cannot be ranked, so take a longer one (--window): {error}"
            ) from None
        ranked = by_test[test][0]
        return replace(ranked, weights=ranked.weights * truncated(window.judging.weights[ranked.rows]))

    # The new run

    def _publish(
        self,
        trainers: Sequence[Trainer],
        window: Window,
        store: str,
        tested: Tested,
        forced: bool,
        target: Path,
    ) -> None:
        """Write the network of the last one of these trainers, with the records of all."""
        trainer, split = trainers[-1], self._cut(self.log.now)
        updated = self.card.updated
        times = updated.times + 1 if updated else 1
        new = [replace(record, update=times) for each in trainers for record in each.records]
        trainer.records = [*read_records(self.folder), *new]
        trainer.select_by = self.card.select_by
        chosen = chosen_settings(trainer.model, trainer.model.state_dict())
        config = RunConfig.of(replace(self.config, data="", chosen=chosen, events_in="run"), split)
        summary = UpdateSummary(
            parent=os.path.relpath(self.folder, target.parent.resolve() / target.name),
            times=times,
            base=self.base.own,
            settings=asdict(self.settings),
            window=tested.document() | {"start": window.start},
            forced=forced,
        )
        learned_from = StoreSummary(store, self.merged.newest._asdict())
        with new_run(target) as folder:
            written = RunFolder.begin(folder, config, resume=False)
            # The curve of the debiasing strength was measured with other weights.
            written.make_card = lambda trainer: replace(
                RunCard.of(trainer, config),
                split=SplitSummary.of(split),
                updated=summary,
                store=learned_from,
                debias_curve=None,
            )
            written.remember(split)
            if self.erasures:
                add_erasures(folder / IN_RUN, self.erasures)
            if self.base.remembered:
                written.replace(BASE, lambda path: pq.write_table(self.base.table, path))
            written.finish(trainer)


def _verdict(is_worse: bool, force: bool, writes: bool) -> Verdict:
    if is_worse and not force:
        return "worse"
    if is_worse:
        return "forced" if writes else "would be forced"
    return "published" if writes else "would be published"
