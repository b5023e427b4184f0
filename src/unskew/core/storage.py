"""Addresses of object stores: `s3://bucket/key`, `gs://bucket/key` and `abfs://container/key`, through the
file systems of Arrow.

Logs are read from such addresses, and lists are written to them. Prepared folders and runs are mapped into
memory, so they are on a disk. Credentials are those of the environment, as the clients of the stores read
them: for Azure, AZURE_STORAGE_ACCOUNT names the account. `AWS_ENDPOINT_URL` and `AWS_REGION` are for servers
that speak the protocol of S3.
"""

import io
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, BinaryIO, cast

from pyarrow import ArrowException

from unskew.core.errors import BadInput

if TYPE_CHECKING:
    from pyarrow import fs

SCHEMES = ("s3", "gs", "abfs")
# A path loses one of the slashes of an address.
_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/+([^/].*)$")
_TIMEOUT = 30.0  # seconds


def address_of(path: str | os.PathLike[str]) -> str | None:
    """The address of an object that a path stands for; None for a path on a disk."""
    found = _ADDRESS.match(os.fspath(path))
    if found is None:
        return None
    scheme, name = found[1].lower(), found[2]
    if scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise BadInput(f"{scheme}://{name}: expected a path or an address that begins with {known}")
    return f"{scheme}://{name}"


def check_on_disk(path: str | os.PathLike[str]) -> None:
    """Refuse the address of an object store."""
    if address := address_of(path):
        raise BadInput(
            f"{address}: expected a path on a disk. Logs are read from object stores and lists are written "
            "to them, but prepared folders and runs are mapped into memory"
        )


@cache
def filesystem(scheme: str) -> "fs.FileSystem":
    """Arrow's file system for the addresses of a scheme."""
    from pyarrow import fs  # it starts the clients of all stores

    if scheme == "s3":
        region = os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION"))
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL"))
        return fs.S3FileSystem(
            region=region or "us-east-1",
            endpoint_override=endpoint,
            connect_timeout=_TIMEOUT,
            request_timeout=_TIMEOUT,
        )
    name = {"gs": "GcsFileSystem", "abfs": "AzureFileSystem"}[scheme]
    if not hasattr(fs, name):
        raise BadInput(f"{scheme}://: this build of pyarrow has no {name}")
    if scheme == "gs":
        return fs.GcsFileSystem()
    account = os.environ.get("AZURE_STORAGE_ACCOUNT")
    if account is None:
        raise BadInput("abfs://: the environment has no AZURE_STORAGE_ACCOUNT")
    return fs.AzureFileSystem(account)


def _opened(address: str) -> tuple["fs.FileSystem", str]:
    scheme, _, name = address.partition("://")
    return filesystem(scheme), name


@contextmanager
def _plain_errors(address: str, doing: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ArrowException) as error:
        raise BadInput(f"{address}: cannot be {doing} ({str(error).splitlines()[0]})") from None


def objects(address: str) -> list[str]:
    """The addresses of the objects that an address stands for, sorted: one object, all objects below it, or
    those that match a pattern."""
    from pyarrow import fs

    files, name = _opened(address)
    scheme, plain = address.partition("://")[0], re.split(r"[*?\[]", name, maxsplit=1)[0]
    with _plain_errors(address, "read"):
        if plain == name and files.get_file_info(name).type == fs.FileType.File:
            return [address]
        folder = name.rstrip("/") if plain == name else plain.rpartition("/")[0]
        found = files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    names = sorted(info.path for info in found if info.type == fs.FileType.File)
    return [f"{scheme}://{each}" for each in names if plain == name or fnmatchcase(each, name)]


def exists(path: Path) -> bool:
    """Whether there is a file, or an object."""
    if (address := address_of(path)) is None:
        return path.exists()
    from pyarrow import fs

    files, name = _opened(address)
    with _plain_errors(address, "read"):
        return bool(files.get_file_info(name).type == fs.FileType.File)


def open_bytes(path: str) -> BinaryIO:
    """The bytes of a file or an object."""
    if (address := address_of(path)) is None:
        return Path(path).open("rb")
    files, name = _opened(address)
    with _plain_errors(address, "read"):
        return cast(BinaryIO, io.BufferedReader(files.open_input_file(name)))


def upload(file: Path, address: str) -> None:
    """Store a file as an object, which appears when it is whole: a stream of bytes that ends early would be
    an object, too, so they go to another name first."""
    files, name = _opened(address)
    scratch = f"{name}.{secrets.token_hex(8)}.unfinished"
    with _plain_errors(address, "written"), file.open("rb") as source:
        try:
            with files.open_output_stream(scratch, compression=None) as target:
                copyfileobj(source, target, 1 << 20)
            files.move(scratch, name)
        except BaseException:
            with suppress(OSError):
                files.delete_file(scratch)
            raise
