"""The secrets by which a client may read, record lists, or write."""

import hmac
import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unskew.core.errors import BadInput

SHORTEST = 16  # characters
REQUIRED = {"read", "write"}
Right = Literal["read", "record", "write"]


@dataclass(frozen=True, repr=False)
class Tokens:
    """The secrets of a service. The one for recording also reads, and the one for writing does both. Without
    one for recording, only the one for writing records."""

    read: str
    write: str
    record: str = ""

    def allows(self, token: str, right: Right) -> bool:
        """Whether a token has a right. How long this takes does not depend on where a wrong one
        differs."""
        writes, records, reads = (
            bool(secret) and hmac.compare_digest(token.encode(), secret.encode())
            for secret in (self.write, self.record, self.read)
        )
        return writes or (records and right != "write") or (reads and right == "read")


def read_tokens(file: Path) -> tuple[Tokens, list[str]]:
    """The tokens of a file with the lines `read: TOKEN`, `write: TOKEN` and maybe `record: TOKEN`, or of the
    same as JSON; and warnings for its owner."""
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BadInput(f"{file}: the tokens cannot be read ({reason})") from None
    tokens = _parse(text)
    if tokens is None or not REQUIRED <= set(tokens) <= REQUIRED | {"record"}:
        raise BadInput(
            f"{file}: expected the lines `read: TOKEN`, `write: TOKEN` and maybe `record: TOKEN`, or the "
            "same as JSON"
        )
    for right, token in tokens.items():
        if len(token) < SHORTEST or not token.isascii() or any(sign.isspace() for sign in token):
            raise BadInput(
                f"{file}: the token for {right}: expected at least {SHORTEST} characters of ASCII, no blanks"
            )
    if len(set(tokens.values())) < len(tokens):
        raise BadInput(f"{file}: expected tokens that differ from each other")
    is_open = mode & (stat.S_IROTH | stat.S_IWOTH)
    warning = f"{file}: every user of this machine can read the tokens; chmod 600 {file}"
    return Tokens(**tokens), [warning] if is_open else []


def _parse(text: str) -> dict[str, str] | None:
    if not text.lstrip().startswith("{"):
        lines = [line.partition(":") for line in text.splitlines() if line.strip()]
        return {name.strip(): value.strip() for name, _, value in lines}
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if all(isinstance(value, str) for value in document.values()) else None
