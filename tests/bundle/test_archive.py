"""Archives of other people: what they may unpack to, and how much."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from k3ctl.bundle import archive
from k3ctl.errors import UsageError

Member = Callable[[tarfile.TarFile], None]


def file(name: str, data: bytes = b"x", **fields: object) -> Member:
    def add(tar: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        for key, value in fields.items():
            setattr(entry, key, value)
        tar.addfile(entry, io.BytesIO(data))

    return add


def special(name: str, kind: bytes, **fields: object) -> Member:
    def add(tar: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo(name)
        entry.type = kind
        for key, value in fields.items():
            setattr(entry, key, value)
        tar.addfile(entry)

    return add


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archives unpack below ``tmp_path/a/b``; what lies beside it must not change."""
    scratch = tmp_path / "a" / "b"
    scratch.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    (tmp_path / "precious.txt").write_text("precious")
    return tmp_path


def pack(path: Path, *members: Member) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        file("bundle/readme")(tar)  # one directory, as it should be: nothing else is wrong with it
        for add in members:
            add(tar)
    return path


@pytest.mark.parametrize(
    "members",
    [
        [file("../escaped.txt")],
        [file("bundle/../../../escaped.txt")],
        [file("../../../escaped.txt")],
        [file("{outside}/escaped.txt")],
        [special("bundle/link", tarfile.SYMTYPE, linkname="../../../../precious.txt")],
        [special("bundle/link", tarfile.SYMTYPE, linkname="{outside}"), file("bundle/link/escaped.txt")],
        [special("bundle/hard", tarfile.LNKTYPE, linkname="{outside}/precious.txt")],
        [special("bundle/hard", tarfile.LNKTYPE, linkname="../../../precious.txt")],
        [special("bundle/fifo", tarfile.FIFOTYPE)],
        [special("bundle/null", tarfile.CHRTYPE, devmajor=1, devminor=3)],
    ],
    ids=["up", "up-and-down", "far-up", "absolute", "link", "write-through-a-link", "hard-link",
         "relative-hard-link", "fifo", "device"],
)  # fmt: skip
def test_an_archive_that_reaches_outside_or_holds_no_plain_files_is_refused(
    outside: Path, members: list[Member]
):
    def named(tar: tarfile.TarFile) -> None:
        original = tar.addfile

        def addfile(entry: tarfile.TarInfo, data: io.BytesIO | None = None) -> None:
            entry.name, entry.linkname = (
                text.replace("{outside}", str(outside)) for text in (entry.name, entry.linkname)
            )
            original(entry, data)

        tar.addfile = addfile  # type: ignore[method-assign]

    hostile = pack(outside / "h.tar.gz", named, *members)
    before = sorted(outside.rglob("*"))
    with pytest.raises(UsageError, match=r"h\.tar\.gz"), archive.opened(hostile):
        pass
    assert sorted(outside.rglob("*")) == before
    assert (outside / "precious.txt").read_text() == "precious"


def test_modes_of_an_archive_are_not_taken_over(outside: Path) -> None:
    with archive.opened(pack(outside / "h.tar.gz", file("bundle/tool", mode=0o6777))) as root:
        mode = (root / "tool").stat().st_mode
    assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)


def test_an_archive_that_unpacks_to_too_much_is_refused(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 1 << 20)
    big = [file(f"bundle/{i}", bytes(300_000)) for i in range(4)]
    with archive.opened(pack(outside / "fits.tar.gz", *big[:3])) as root:
        assert len(list(root.iterdir())) == 4
    with (
        pytest.raises(UsageError, match="unpacks to more than"),
        archive.opened(pack(outside / "h.tar.gz", *big)),
    ):
        pass


def test_a_member_that_claims_too_much_is_refused_before_its_data_is_unpacked(outside: Path) -> None:
    """A few kilobytes that would unpack to hundreds of gigabytes: its header is enough to know."""
    entry = tarfile.TarInfo("bundle/zeros")
    entry.size = 500 << 30
    bomb = outside / "bomb.tar.gz"
    bomb.write_bytes(gzip.compress(entry.tobuf() + bytes(1 << 20)))
    with pytest.raises(UsageError, match="unpacks to more than"), archive.opened(bomb):
        pass


def test_an_archive_of_too_many_files_is_refused(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 3)
    many = pack(outside / "many.tar.gz", *(file(f"bundle/{i}") for i in range(3)))
    with pytest.raises(UsageError, match="unpacks to more than"), archive.opened(many):
        pass
