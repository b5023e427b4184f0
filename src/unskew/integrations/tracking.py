"""Follow the training of a model elsewhere while it runs:

    model.fit(split, "run", on_record=tensorboard.track("board/run"))

`on_record` is called with the `EpochRecord` of each epoch, so any function of one argument will do.
A run that is resumed sends all of its records again, because it cannot know which of them arrived before it
was stopped. So a receiver has to skip the records that it already has.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from unskew.core.errors import BadInput
from unskew.training.epoch_record import EpochRecord


def numbers(record: EpochRecord) -> dict[str, float]:
    """All numbers of a record by their names; names inside of others are joined with a slash."""
    return dict(_numbers(record.to_json()))


def _numbers(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and name != "step":
            yield above + name, value


def missing(package: str, tool: str) -> BadInput:
    """The error where the package of a tool is not installed."""
    return BadInput(f"{tool} is not installed: pip install {package}", field=package)
