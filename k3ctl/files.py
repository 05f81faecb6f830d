"""Reading files that anyone may have written, and writing files that nobody else may read. Standard library only."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import stat
import zlib
from pathlib import Path
from typing import IO, Any

from k3ctl.errors import UsageError


class TooLarge(ValueError):
    """The file holds more than a reader takes."""


DIRECTORY = 0o700
FILE = 0o600


def read(path: Path, limit_bytes: int) -> bytes:
    """The bytes of a regular file of at most ``limit_bytes``. A pipe or a device is refused, not waited for.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, or longer.
    """
    with opened(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise TooLarge(f"it is larger than {_size(limit_bytes)}")
    return data


def unpacked(path: Path, limit_bytes: int) -> bytes:
    """The same for a file that may be gzipped; ``limit_bytes`` counts what it unpacks to.

    Raises:
        OSError, ValueError: as ``read``, or it is damaged.
    """
    with opened(path) as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            data = file.read(limit_bytes + 1)
        else:
            try:
                with gzip.GzipFile(fileobj=file) as inner:
                    data = inner.read(limit_bytes + 1)
            except (EOFError, zlib.error) as error:
                raise ValueError(f"it is damaged: {error}") from error
    if len(data) > limit_bytes:
        raise TooLarge(f"it unpacks to more than {_size(limit_bytes)}")
    return data


def text(path: Path, limit_bytes: int, what: str = "file") -> str:
    """The text of a file. Raises ``UsageError`` that names the file and what is wrong with it."""
    try:
        return read(path, limit_bytes).decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"no {what} `{path}`") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} `{path}` cannot be read: {reason(error)}") from error


def parse_json(document: str | bytes, where: str) -> Any:
    """A JSON document without NaN or infinities. Raises ``UsageError`` that names ``where`` and the place in it."""
    try:
        return json.loads(document, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{where} is not JSON: {error.msg} ({place})") from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {reason(error)}") from None


def reason(error: Exception) -> str:
    """What is wrong with a file, without its name."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def owned(path: Path) -> bool:
    """Whether ``path`` itself, not what a link points at, belongs to this user."""
    with contextlib.suppress(OSError, ValueError):
        found = path.lstat()
        return found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    return False


def private_directory(path: Path) -> None:
    """Make a directory, its parents too, that only this user can enter; one that is there already is closed to others.

    Raises:
        OSError: it cannot be made, or belongs to somebody else, or is a link.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=DIRECTORY)
    if not path.is_dir() or not owned(path):
        raise PermissionError(1, "it belongs to another user, or is a link", str(path))
    if stat.S_IMODE(path.lstat().st_mode) & 0o077:
        path.chmod(DIRECTORY)


def append(path: Path) -> IO[bytes]:
    """A file opened at its end; made with mode 0600, never through a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, FILE), "ab")


def replace(path: Path, data: bytes, *, exclusive: bool = False) -> None:
    """Write a file with mode 0600, never through a link."""
    how = os.O_EXCL if exclusive else os.O_TRUNC
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | how
    with os.fdopen(os.open(path, flags, FILE), "wb") as file:
        file.write(data)


def opened(path: Path) -> io.BufferedReader:
    """A regular file for reading. Raises OSError, or ValueError for a pipe, a device or a directory."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is not a regular file")
    return file


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"`{name}` is no number")


def _size(limit_bytes: int) -> str:
    return f"{limit_bytes >> 20} MiB" if limit_bytes >= 1 << 20 else f"{limit_bytes >> 10} KiB"
