"""Damage that a file can suffer: each kind is seeded, and some are made to mislead whoever trusts a size."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

LARGE = (2**31, 2**63 - 1, 2**64, 10**30, -1, -(2**63))
ODD: tuple[Any, ...] = (None, True, "", "a" * 5000, [], {}, 1e308, *LARGE)

Damage = Callable[[bytes, np.random.Generator], bytes]


def cut(content: bytes, random: np.random.Generator) -> bytes:
    """A part is missing at the end."""
    return content[: random.integers(0, max(len(content), 1))]


def flip(content: bytes, random: np.random.Generator) -> bytes:
    """Single bits are others."""
    changed = bytearray(content)
    for place in random.integers(0, len(changed), 5):
        changed[place] ^= 1 << int(random.integers(0, 8))
    return bytes(changed)


def overwrite(content: bytes, random: np.random.Generator) -> bytes:
    """Eight bytes are those of a large number."""
    place = int(random.integers(0, max(len(content) - 8, 1)))
    large = random.choice([2**31, 2**40, 2**63 - 1, 2**64 - 1]).astype(np.uint64)
    return content[:place] + large.tobytes() + content[place + 8 :]


def overwrite_head(content: bytes, random: np.random.Generator) -> bytes:
    """The same in the first bytes, where sizes stand."""
    return overwrite(content[:300], random) + content[300:]


def repeat(content: bytes, random: np.random.Generator) -> bytes:
    """A part stands there twice."""
    start, end = sorted(random.integers(0, len(content) + 1, 2).tolist())
    return content[:end] + content[start:]


def nest(content: bytes, random: np.random.Generator) -> bytes:
    """A document is nested more deeply than anybody can read."""
    return (b"[" if random.integers(2) else b'{"a":') * 100_000


def replace_value(content: bytes, random: np.random.Generator) -> bytes:
    """A value of a document, of the first line of many, is an odd one; elsewhere a digit is another one."""
    first, _, rest = (
        content.partition(b"\n") if content[:1] == b"{" and b'}\n{"' in content else (content, b"", b"")
    )
    try:
        document = json.loads(first)
    except ValueError:
        digits = [place for place, byte in enumerate(content[:2000]) if 48 <= byte <= 57]
        place = digits[int(random.integers(len(digits)))] if digits else 0
        return content[:place] + b"9" * 12 + content[place + 1 :]
    places = list(_places(document))
    holder, key = places[int(random.integers(len(places)))]
    holder[key] = ODD[int(random.integers(len(ODD)))]
    return json.dumps(document).encode() + (b"\n" + rest if rest else b"")


def _places(document: Any) -> Any:
    """Each value of a document: what holds it, and under which key."""
    pairs = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in list(pairs):
        yield document, key
        yield from _places(value)


KINDS: tuple[Damage, ...] = (cut, flip, overwrite, overwrite_head, repeat, nest, replace_value)
