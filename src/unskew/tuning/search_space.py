"""What tuning may look at, and where it looks: a log that ends before the test set, and the settings of a
model that are searched."""

from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow.compute as pc
import torch

from unskew.api.create import create_model, preset_of
from unskew.core.config import Search, Settings, flat, names_of, searched
from unskew.core.errors import BadInput, check_is
from unskew.data.log.folder import MARK
from unskew.data.log.preparation import Metadata
from unskew.data.log.split import LeaveOneOut, Split, split_at
from unskew.data.reading.prepare import read
from unskew.models.base import ModelConfig, Recommender, Training, model_named
from unskew.models.debiased import Debiased, Weighting
from unskew.nn.phases import Stage

# Batches of `batch_size`; the others are of `sequences`.
OF_PAIRS = ("pairs", "positives", "prefixes", "positive-prefixes")
SMALL = 64  # up to so many combinations, each of them is tried once


class BeforeTest:
    """A split without its test set: its log ends at `valid_end`, and users and items that came later are not
    there either. Tuning takes nothing else, so the test set cannot reach it.

    Parameters
    ----------
    split
        The split of a whole log.

    Attributes
    ----------
    split
        The split of the log that is left; its training and validation set are those of the whole.
    splitting
        How the whole was split.
    fingerprint
        The hash of the log that is left.
    """

    def __init__(self, split: Split) -> None:
        check_is(split, Split, "a split of a log, as `unskew.split(log)` makes it")
        if not split.rows("valid").size:
            fractions = ", ".join(f"{fraction:g}" for fraction in split.settings.fractions)
            raise BadInput(f"tuning needs a validation set, and this split has none (fractions {fractions})")
        self.split = split.without_test() if isinstance(split, LeaveOneOut) else _before_test(split)
        self.splitting, self.fingerprint = split.settings, self.split.log.fingerprint()


def _before_test(split: Split) -> Split:
    table = split.log.table()
    table = table.filter(pc.less(table["time"], split.valid_end))
    # No model reads the names of tests and the titles, which are those of the whole log.
    table = table.drop_columns([name for name in table.column_names if name.startswith((MARK, "title"))])
    # Read again, so that the numbers of users and items say nothing about what came later, either.
    log = replace(read(table), metadata=Metadata(time_unit=split.log.metadata.time_unit))
    settings = replace(split.settings, min_count=split.min_count)
    return split_at(log, settings, split.train_end, split.valid_end)


class Space:
    """The settings of a model that are searched.

    model: the name of a registered model.
    given: settings that are fixed and so not searched.
    preset: named settings to begin with. They are searched like any others.
    """

    def __init__(self, model: str, known: BeforeTest, given: Settings, preset: str | None = None) -> None:
        kind = model_named(model)
        untrained = create_model(model, given, preset)
        config = kind.resolve_auto(untrained.config, known.split)
        with torch.random.fork_rng(devices=[]):  # only to ask how it learns
            stages = kind(known.split.known, config).stages(1)
        names = [*names_of(kind.Config), *names_of(Training)]
        notes = searched(kind.Config) | searched(Training) | kind.searched
        idle = _idle(kind, config, stages)
        possible = [name for name in notes if names.count(name) == 1 and name not in idle]
        if not possible:
            why = "every setting has its value or is chosen on the validation set in training"
            raise BadInput(f"{model} has nothing to tune: {why}")
        names_left = [name for name in possible if name not in given]
        if not names_left:
            raise BadInput(f"{model} has nothing left to tune: {', '.join(possible)} are given")
        values = flat(config) | flat(untrained.training)
        self.epochs: int = untrained.training.epochs
        self.fixed: Settings = preset_of(kind, preset) | given
        self.defaults: Settings = {name: values[name] for name in names_left}
        for name, value in self.defaults.items():
            if value is None and None not in notes[name].values:
                raise BadInput(f"{model}: {name} is searched, and its default is no value to begin with")
        self.notes = {name: notes[name].containing(self.defaults[name]) for name in names_left}
        self._whole_heads(values)

    def _whole_heads(self, values: Settings) -> None:
        """Leave only widths and heads that go with each other, whichever of them are taken."""
        heads = values.get("heads", 1)
        if heads == 1 and "heads" not in self.notes:
            return
        widths = [width for width in self._choices("width", values) if width % heads == 0]
        divisors = [each for each in self._choices("heads", values) if not any(w % each for w in widths)]
        both = {"width": widths, "heads": divisors}
        self.notes |= {name: Search.among(*left) for name, left in both.items() if name in self.notes}

    def _choices(self, name: str, values: Settings) -> tuple[int, ...]:
        """What a whole number may be."""
        if name not in self.notes:
            return (values[name],) if name in values else ()
        note = self.notes[name]
        return note.values or tuple(range(int(note.low), int(note.high) + 1))

    def grid(self, seed: int) -> list[Settings]:
        """All combinations in a seeded order, the defaults first; nothing if there are many."""
        choices = [note.values for note in self.notes.values()]
        if not all(choices) or np.prod([len(values) for values in choices]) > SMALL:
            return []
        every = [dict(zip(self.notes, values, strict=True)) for values in product(*choices)]
        order = np.random.default_rng([seed, 41]).permutation(len(every))
        return sorted((every[number] for number in order), key=lambda settings: settings != self.defaults)

    def distributions(self) -> Settings:
        """The ranges as Optuna takes them."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        distributions: Settings = {}
        for name, note in self.notes.items():
            if note.values:
                distributions[name] = CategoricalDistribution(note.values)
            elif isinstance(self.defaults[name], int):
                distributions[name] = IntDistribution(int(note.low), int(note.high), log=note.log)
            else:
                distributions[name] = FloatDistribution(note.low, note.high, log=note.log)
        return distributions

    def document(self) -> Settings:
        """The ranges as plain numbers and words."""
        return {
            name: list(note.values) if note.values else {"low": note.low, "high": note.high, "log": note.log}
            for name, note in self.notes.items()
        }


def _idle(kind: type[Recommender], config: ModelConfig, stages: tuple[Stage, ...]) -> set[str]:
    """The settings that change nothing in a model of this kind, as it is configured."""
    if not stages:  # nothing is learned by gradients, so there is no loss to weight either
        return {*names_of(Training), *(names_of(Weighting) if issubclass(kind, Debiased) else [])}
    batches = [phase.batches for stage in stages for phase in stage.phases if phase.weighted]
    pairs = [source in OF_PAIRS or callable(source) for source in batches]
    idle = config.idle_settings | ({"batch_size"} if not any(pairs) else set())
    return idle | ({"sequences"} if all(pairs) else set())
