"""Words that are nearly right: a verb, a flag of another library, a setting of another model."""

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from unskew.cli.train import flag_of, model_of
from unskew.core.config import ALIASES as SETTINGS
from unskew.core.config import did_you_mean, names_of
from unskew.core.errors import BadInput

# What people guess, and what it is called here.
ALIASES = {
    **{f"--{guess.replace('_', '-')}": f"--{name.replace('_', '-')}" for guess, name in SETTINGS.items()},
    "--learning_rate": "--learning-rate",
    "--topk": "--k",
    "--seen": "--include-seen",
    "--valid-test": "--select-by",
}
REFIT = {"--refit", "--until", "--out", "--import", "--threads", "--device", "--tensorboard", "--json"}
REFIT |= {"--help"}


def check_words(arguments: list[str], verbs: Iterable[str]) -> None:
    """Words that are nearly right: a verb, a flag of another library or of another model. The rest is left to
    the parser."""
    verb = arguments[0] if arguments else ""
    if verb and not verb.startswith("-") and verb not in verbs:
        raise BadInput(f"no verb {verb!r}{did_you_mean(verb, verbs)}; there are {', '.join(verbs)}")
    given = [argument.split("=", 1)[0] for argument in arguments[1:] if argument.startswith("--")]
    refit = flag_of(arguments, "--refit")
    if verb == "train" and refit is not None:
        other = next((flag for flag in given if flag not in REFIT), None)
        if other is not None:
            raise BadInput(f"--refit takes the settings of {refit}: leave {other} away")
        return
    own = _check_settings(model_of(arguments), given) if verb == "train" else set()
    guessed = next((flag for flag in given if flag in ALIASES and flag not in own), None)
    if guessed is not None:
        raise BadInput(f"no flag {guessed}; here it is {ALIASES[guessed]}")


def _check_settings(name: str, given: list[str]) -> set[str]:
    """The flags of a model. A setting of another model is not a slip of the pen: it is said whose it is."""
    from unskew.models.base import MODELS, model_named

    own = {f"--{setting.replace('_', '-')}" for setting in names_of(model_named(name).Config)}
    for flag in given:
        setting = flag.removeprefix("--").replace("-", "_")
        others = [other for other, kind in sorted(MODELS.items()) if setting in names_of(kind.Config)]
        if others and flag not in own:
            raise BadInput(f"{name} has no setting {flag}; it is one of {', '.join(others)}")
    return own


def check_flags(arguments: list[str], verb: Any) -> None:
    """A flag that a verb does not have, with the one that was probably meant."""
    kinds = [verb, *(kind for kind in get_args(get_type_hints(verb).get("verb")) if is_dataclass(kind))]
    flags = {f"--{name.replace('_', '-')}" for kind in kinds for name in flag_names(kind)} | {"--help"}
    for argument in arguments[1:]:
        flag = argument.split("=", 1)[0]
        if flag.startswith("--") and flag != "--" and flag.replace("_", "-") not in flags:
            near = did_you_mean(flag, flags)
            raise BadInput(f"unskew {arguments[0]} has no flag {flag}{near}; `unskew {arguments[0]} --help`")


def flag_names(settings: Any) -> Iterator[str]:
    """The names of the flags of all settings, those within settings included."""
    for name, hint in get_type_hints(settings, include_extras=True).items():
        kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if is_dataclass(kind):
            yield from flag_names(kind)
        else:
            yield next((note.name for note in notes if getattr(note, "name", None)), name)


def one_line(box: str) -> str:
    """What the parser says in its box, above the second rule, as one sentence in our words."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        if "──" in line or "---" in line:  # a border or a rule; without Unicode it is made of hyphens
            parts.append([])
        else:
            parts[-1].append(line.strip("│| "))
    first = next((part for part in parts[1:] if any(part)), [])  # without Unicode, the title stands before
    sentence = " ".join(filter(None, first)).replace(" (required)", "").removesuffix(".")
    sentence = sentence.replace("invalid literal for int() with base 10:", "expected a whole number, found")
    return sentence.replace("could not convert string to float:", "expected a number, found") or "wrong use"
