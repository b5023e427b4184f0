"""Which variant of the service a user gets: a stable hash of the user's id.

    u(user) = the first 8 bytes of blake2b(user, key = blake2b(names of the variants)), divided by 2^64

Variants have consecutive intervals of u, and the control has the last one. So the same user has the same
variant in every process and after every start; a variant that grows keeps its users; and a test whose
variants have other names splits the users again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from unskew.core.errors import BadInput

CONTROL = "A"  # the run that the service is started with
LONGEST_NAME = 40  # characters


class Variant(NamedTuple):
    """A run that some of the users get.

    Attributes
    ----------
    name
        What it is called in results.
    run
        The folder of a run, or a link to one.
    fraction
        The fraction of the users who get it.
    """

    name: str
    run: str
    fraction: float

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """The variant that a text such as `B=runs/2:0.2` describes."""
        name, _, rest = text.partition("=")
        run, _, fraction = rest.rpartition(":")
        try:
            share = float(fraction)
        except ValueError:
            share = -1.0
        if not name.isalnum() or len(name) > LONGEST_NAME or not run or not 0 < share < 1:
            raise BadInput(
                f"variant {text!r}: expected NAME=RUN:FRACTION, such as B=runs/2:0.2, with letters and "
                "digits in the name and a fraction between 0 and 1",
                field="variant",
            )
        return cls(name, run, share)


@dataclass(frozen=True)
class Assignment:
    """How users are split among variants.

    Parameters
    ----------
    fractions
        The fraction of the users of each variant but the first one, `CONTROL`, which has the rest.
    """

    fractions: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        names = [CONTROL, *(name for name, _ in self.fractions)]
        if len(set(names)) < len(names):
            raise BadInput(
                f"variants {', '.join(names)}: two have the same name, and {CONTROL} is the run itself",
                field="variant",
            )
        if sum(fraction for _, fraction in self.fractions) >= 1:
            raise BadInput("variants: their fractions leave no users for the run itself", field="variant")

    @classmethod
    def of(cls, variants: Sequence[Variant]) -> "Assignment":
        """The split that some variants ask for."""
        return cls(tuple((variant.name, variant.fraction) for variant in variants))

    @property
    def expected(self) -> dict[str, float]:
        """The fraction of the users of every variant."""
        rest = 1 - sum(fraction for _, fraction in self.fractions)
        return {CONTROL: rest, **dict(self.fractions)}

    def variant_of(self, user_id: str) -> str:
        """The variant of a user."""
        place, end = self._uniform(user_id), 0.0
        for name, fraction in self.fractions:
            end += fraction
            if place < end:
                return name
        return CONTROL

    def _uniform(self, user_id: str) -> float:
        """A number from 0 to 1 that depends on the user and on the names of the variants alone."""
        names = "|".join([CONTROL, *(name for name, _ in self.fractions)])
        key = blake2b(names.encode(), digest_size=16).digest()
        return int.from_bytes(blake2b(user_id.encode(), digest_size=8, key=key).digest(), "big") / 2**64
