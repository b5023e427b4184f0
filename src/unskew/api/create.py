"""New models from their settings: `DEPS(width=32)`, `Debiased("gru4rec")`, `create_model("sasrec")`; and a
model that goes on with its run, `resume(folder)`."""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from unskew.api.model import Model
from unskew.api.zero_shot import ZeroShot
from unskew.core.config import (
    AtLeast0,
    AtLeast1,
    Positive,
    check,
    check_type,
    configured,
    did_you_mean,
    meant,
    names_of,
)
from unskew.core.errors import BadInput
from unskew.data.log.split import Split
from unskew.models import deps
from unskew.models.base import Recommender, Training, model_named
from unskew.training.epoch_record import OnRecord
from unskew.training.run import load as load_run
from unskew.training.run import read_config


@dataclass(frozen=True, kw_only=True)
class _Settings(deps.DEPS.Config, Training):
    """DEPS and its training in one, with the defaults of `DEPS.recipe`."""

    epochs: AtLeast1 = 5
    """The largest number of training epochs (n_u). After each one the validation set is ranked."""
    patience: AtLeast0 = 1
    """Training stops after this many epochs without a better validation metric."""
    negatives: AtLeast0 | None = 1
    """How many negative items are sampled for each context."""
    learning_rate: Positive = 3e-4
    """The learning rate of the optimizer."""


@configured(_Settings)
def DEPS(settings: _Settings) -> Model:  # noqa: N802 (reads like the class it stands for)
    """The paper's model: dual propensities, dual transformers, two stages. `create_model("deps",
    preset="paper")` has the paper's own values."""
    return create_model("deps", dataclasses.asdict(settings))


def Debiased(backbone: str, settings: dict[str, Any] | None = None) -> Model:  # noqa: N802
    """Any registered model with its pairs weighted by inverse propensities:
    `Debiased("gru4rec", {"propensity": "dual", "width": 64})`.

    Settings are those of `unskew.models.debiased.Weighting`, of the backbone and of training.
    """
    return create_model(f"debiased-{backbone}", settings)


def create_model(name: str, settings: dict[str, Any] | None = None, preset: str | None = None) -> Model:
    """Any registered model from one flat set of settings: its own, its backbone's if it has one, and those of
    training.

    name: `unskew models` lists the models with their settings and presets.
    settings: what is not given has the value of the preset, and otherwise the model's default.
    preset: a named set of settings, such as `paper`: the values of the model's paper. Several may stand
        between commas; of a setting that two of them have, the later one counts.
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
    config, training = _taken(kind.Config, left), _taken(Training, left, kind.recipe)
    check(config)
    check(training)
    return Model(name, config, training)


def preset_of(kind: type[Recommender], preset: str | None) -> dict[str, Any]:
    """The settings of one or more presets. Every model has `paper`, which is empty where the defaults are the
    paper's."""
    presets: dict[str, dict[str, Any]] = {"paper": {}} | kind.presets
    found: dict[str, Any] = {}
    for name in [] if preset is None else preset.split(","):
        if name not in presets:
            near = did_you_mean(name, presets)
            raise BadInput(f"{kind.name} has no preset {name!r}{near}; there are {', '.join(presets)}")
        found |= presets[name]
    return found


def _taken(kind: Any, settings: dict[str, Any], defaults: dict[str, Any] | None = None) -> Any:
    """An instance of these settings, from what was given for it."""
    hints, found = get_type_hints(kind), dict(defaults or {})
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            found[field.name] = _taken(hints[field.name], settings)
        elif field.name in settings:
            check_type(field.name, settings[field.name], hints[field.name])
            found[field.name] = settings[field.name]
    return kind(**found)


def load(folder: str | os.PathLike[str]) -> Model:
    """A model from the run that it was trained in. A run that was stopped has its best weights so far.
    `load("pulse-zero")` is the model that comes with this package and works on any log."""
    if os.fspath(folder) == "pulse-zero" and not Path(folder).exists():
        return ZeroShot()
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
    """Go on with a run that was stopped, or add epochs to one that was not.

    split: what it was trained on; by default the prepared folder that it names is opened and cut again.
    epochs, patience: new limits; by default those that the run has.
    """
    config = read_config(Path(folder))
    training = dataclasses.replace(
        config.training,
        epochs=config.training.epochs if epochs is None else epochs,
        patience=config.training.patience if patience is None else patience,
    )
    model = Model(config.model, config.config, training)
    return model.fit(
        config.open_split() if split is None else split,
        folder,
        resume=True,
        on_record=on_record,
        show_progress=show_progress,
        chosen=config.chosen,
    )
