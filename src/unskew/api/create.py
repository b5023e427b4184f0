"""New models from their settings: `DEPS(width=32)`, `Debiased("gru4rec")`, `create_model("sasrec")`; and a
model that continues its run, `resume(folder)`."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from unskew.api.model import Model
from unskew.api.zero_shot import ZeroShot
from unskew.core.config import (
    AtLeast0,
    Positive,
    Settings,
    check,
    check_type,
    configured,
    did_you_mean,
    meant,
    names_of,
)
from unskew.core.errors import BadInput
from unskew.core.storage import check_on_disk
from unskew.data.log.split import Split
from unskew.models import deps
from unskew.models.base import Recommender, Training, model_named
from unskew.training.epoch_record import OnRecord
from unskew.training.run import load as load_run
from unskew.training.run import read_config


@dataclass(frozen=True, kw_only=True)
class _Settings(deps.DEPS.Config, Training):
    """DEPS and its training in one, with the defaults of `DEPS.recipe`."""

    negatives: AtLeast0 | None = 1
    """How many negative items are sampled for each context."""
    learning_rate: Positive = 3e-4
    """The learning rate of the optimizer."""


@configured(_Settings)
def DEPS(settings: _Settings) -> Model:  # noqa: N802 (reads like the class it stands for)
    """The paper's model: dual propensities, dual transformers, two stages. `create_model("deps",
    preset="paper")` has the paper's own values."""
    return create_model("deps", dataclasses.asdict(settings))


def Debiased(backbone: str, settings: Settings | None = None) -> Model:  # noqa: N802
    """Create a registered model with its loss corrected by propensities.

    Parameters
    ----------
    backbone
        The name of a registered model.
    settings
        Those of `unskew.models.debiased.Weighting`, of the backbone and of training.

    Examples
    --------
    >>> Debiased("gru4rec", {"propensity": "dual", "width": 64}).fit(split)
    """
    return create_model(f"debiased-{backbone}", settings)


def create_model(name: str, settings: Settings | None = None, preset: str | None = None) -> Model:
    """Create any registered model from one flat set of settings.

    Parameters
    ----------
    name
        The name of the model; `unskew models` lists the models with their settings and presets.
    settings
        Those of the model, of its backbone if it has one, and of training. What is not given has the value of
        the preset, and otherwise the model's default.
    preset
        A named set of settings, such as `paper`: the values of the model's paper. Several may stand between
        commas; of a setting that two of them have, the later one counts.

    Returns
    -------
    Model
        A model that is not trained yet.
    """
    kind = model_named(name)
    left = preset_of(kind, preset) | (settings or {})
    names = [*names_of(kind.Config), *names_of(Training)]
    for setting in left:
        if names.count(setting) > 1:
            raise BadInput(
                f"{name}: {setting!r} is a setting of two of its parts; say it in its Config, where each "
                "part has its own"
            )
        if setting not in names:
            raise BadInput(f"{name} has no setting {setting!r}{meant(setting, names)}")
    config, training = _from_settings(kind.Config, left), _from_settings(Training, left, kind.recipe)
    check(config)
    check(training)
    return Model(name, config, training)


def preset_of(kind: type[Recommender], preset: str | None) -> Settings:
    """The settings of one or more presets. Every model has `paper`, which is empty where the defaults are the
    paper's."""
    presets: dict[str, Settings] = {"paper": {}} | kind.presets
    settings: Settings = {}
    for name in [] if preset is None else preset.split(","):
        if name not in presets:
            near = did_you_mean(name, presets)
            raise BadInput(f"{kind.name} has no preset {name!r}{near}; there are {', '.join(presets)}")
        settings |= presets[name]
    return settings


def _from_settings(kind: Any, settings: Settings, defaults: Settings | None = None) -> Any:
    """An instance of these settings, from what was given for it."""
    hints, values = get_type_hints(kind), dict(defaults or {})
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            values[field.name] = _from_settings(hints[field.name], settings)
        elif field.name in settings:
            check_type(field.name, settings[field.name], hints[field.name])
            values[field.name] = settings[field.name]
    return kind(**values)


def load(folder: str | os.PathLike[str]) -> Model:
    """Load a model from the folder of its run. A run that was stopped has its best weights so far.

    Parameters
    ----------
    folder
        The folder of a run, or `pulse-zero`: the model that comes with this package and works on any log.
    """
    if os.fspath(folder) == "pulse-zero" and not Path(folder).exists():
        return ZeroShot()
    check_on_disk(folder)
    trained = load_run(folder)
    settings = trained.settings
    return Model(settings.model, settings.config, settings.training, trained)


def resume(
    folder: str | os.PathLike[str],
    split: Split | None = None,
    epochs: int | None = None,
    patience: int | None = None,
    on_record: OnRecord | None = None,
    show_progress: bool = True,
) -> Model:
    """Continue a run that was stopped, or add epochs to one that was not.

    Parameters
    ----------
    folder
        The folder of the run.
    split
        What it was trained on; by default the prepared folder that it names is opened and split again.
    epochs, patience
        New limits; by default those that the run has.
    on_record, show_progress
        As for `Model.fit`.
    """
    config = read_config(Path(folder))
    limits = {"epochs": epochs, "patience": patience}
    changed: Settings = {name: limit for name, limit in limits.items() if limit is not None}
    model = Model(config.model, config.config, dataclasses.replace(config.training, **changed))
    return model.fit(
        config.open_split() if split is None else split,
        folder,
        resume=True,
        on_record=on_record,
        show_progress=show_progress,
        chosen=config.chosen,
    )
