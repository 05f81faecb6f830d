"""A bundle as one file: the same bundle always gives the same bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from k3ctl.bundle import seal
from k3ctl.errors import UsageError

SUFFIX = ".k3b.tar.gz"
MAX_UNPACKED_BYTES = 4 << 30
MAX_MEMBERS = 10_000


def pack(directory: Path, out: Path) -> Path:
    """Write ``directory`` as a gzipped tar: names sorted, no times, owners or modes of this machine.

    Raises:
        UsageError: ``out`` exists, or ``directory`` is not sealed.
    """
    if out.exists():
        raise UsageError(
            f"`{out}` exists already", hint="choose another name, archives are never overwritten"
        )
    if not (directory / seal.SUMS).is_file():
        raise UsageError(f"`{directory}` is not a bundle", hint="expected SHA256SUMS in it")
    names = [
        *(path.relative_to(directory) for path in seal.files(directory)),
        Path(seal.SUMS),
        Path(seal.STATEMENT),
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(names, key=lambda path: path.as_posix()):
            data = (directory / name).read_bytes()
            entry = tarfile.TarInfo(f"{directory.name}/{name.as_posix()}")
            entry.size, entry.mode, entry.mtime = len(data), 0o644, 0
            tar.addfile(entry, io.BytesIO(data))
    # a fixed level and no name or time in the header: zlib then gives the same bytes for the same input
    out.write_bytes(gzip.compress(buffer.getvalue(), compresslevel=9, mtime=0))
    return out


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """The bundle directory behind ``path``: itself, or an archive unpacked for the length of the block.

    Raises:
        UsageError: ``path`` is neither, or the archive is damaged or hostile.
    """
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise UsageError(f"`{path}` does not exist")
    with tempfile.TemporaryDirectory(prefix="k3ctl-bundle-") as temporary:
        yield _unpack(path, Path(temporary))


def _unpack(path: Path, into: Path) -> Path:
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            tar.extractall(into, members=_bounded(tar, path), filter="data")
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise UsageError(f"`{path}` is damaged or no bundle archive: {error}") from error
    roots = [entry for entry in into.iterdir() if entry.is_dir()]
    if len(roots) != 1:
        raise UsageError(f"`{path}` holds {len(roots)} directories, expected one")
    return roots[0]


def _bounded(tar: tarfile.TarFile, path: Path) -> list[tarfile.TarInfo]:
    """The members, refused by what their headers say before the data of the one too many is even skipped."""
    members, total = [], 0
    for member in tar:
        total += member.size
        members.append(member)
        if total > MAX_UNPACKED_BYTES or len(members) > MAX_MEMBERS:
            raise UsageError(
                f"`{path}` unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB or {MAX_MEMBERS} files"
            )
    return members
