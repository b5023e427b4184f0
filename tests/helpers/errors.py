"""Errors by their type and by what they are about. The sentence of each error has one test of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unskew.core.errors import BadInput


@contextmanager
def refused(field: str) -> Iterator[None]:
    """Expect bad input, and that it names this setting or argument as what is wrong."""
    with pytest.raises(BadInput) as caught:
        yield
    assert caught.value.field == field, caught.value
