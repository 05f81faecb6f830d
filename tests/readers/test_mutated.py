"""Every reader, fed with damaged and hostile versions of real inputs: a value or one clear error, never a traceback.

Each case prints its seed; ``K3CTL_SEED=N`` runs the same inputs again, or others.
"""

from __future__ import annotations

import gzip
import os
import random
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from k3ctl.bundle import archive, report
from k3ctl.bundle import verify as bundles
from k3ctl.errors import K3Error
from tests.readers.damage import FRESH, SEED, mutate_bytes, mutated
from tests.readers.inputs import NO_FILES, READERS, engine_log

SETTINGS = settings(
    deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
QUICK, LONG = settings(SETTINGS, max_examples=20), settings(SETTINGS, max_examples=400)


def try_damaged(name: str, directory: Path, how_many: settings, number: int) -> None:
    """Give a reader damaged inputs: a value, or one error that names the file."""
    reader, file, data = READERS[name]
    sys.stdout.write(f"seed {number}\n")  # shown when the test fails

    @seed(number)
    @how_many
    @given(st.integers(0, 1 << 48))
    def check(number: int) -> None:
        path = directory / file
        path.write_bytes(mutated(data, number))
        try:
            reader(path)
        except K3Error as error:
            assert file in " ".join([error.message, *error.reasons])

    check()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_input_gives_a_value_or_one_error(name: str, tmp_path: Path) -> None:
    try_damaged(name, tmp_path, QUICK, SEED)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_inputs_do(name: str, tmp_path: Path) -> None:
    try_damaged(name, tmp_path, LONG, FRESH)


@pytest.mark.parametrize(
    "part", ["manifest.json", "summary.json", "SHA256SUMS", "raw/ask.json", "raw/outcome.json", "archive"]
)
def test_a_damaged_bundle_gives_a_red_check_or_one_error(part: str, tmp_path: Path, make_bundle: Any) -> None:
    source = make_bundle()
    sys.stdout.write(f"seed {SEED}\n")  # shown when the test fails
    packed = archive.pack(source, tmp_path / "b.k3b.tar.gz").read_bytes()
    whole = (source / part).read_bytes() if part != "archive" else b""

    @seed(SEED)
    @QUICK
    @given(st.integers(0, 1 << 48))
    def check(number: int) -> None:
        path = source
        if part == "archive":
            path = tmp_path / "damaged.k3b.tar.gz"
            path.write_bytes(mutate_bytes(packed, random.Random(number)))
        else:
            (source / part).write_bytes(mutated(whole, number))
        try:
            with archive.opened(path) as directory:
                bundles.verify(directory)
                report.markdown(report.load(directory))
        except K3Error as error:
            assert error.message.strip()

    check()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "kind", ["empty", "binary", "deep", "pipe", "directory", "gone", "no permission", "bomb"]
)
def test_what_is_no_input_at_all_is_refused_in_time(name: str, kind: str, tmp_path: Path) -> None:
    reader, file, _ = READERS[name]
    if kind in ("pipe", "directory", "gone", "no permission") and reader in NO_FILES:
        pytest.skip("reads no file of its own, or is tried elsewhere")
    if kind == "pipe" and reader is engine_log:
        pytest.skip("a log may come through a pipe")
    path = tmp_path / file
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "no permission":
        path.write_bytes(b"x")
        path.chmod(0)
    elif kind == "bomb":
        path.write_bytes(gzip.compress(bytes(8 << 20)))
    elif kind != "gone":
        path.write_bytes({"empty": b"", "binary": bytes(range(256)) * 16, "deep": b"[" * 100_000}[kind])
    try:
        reader(path)
    except K3Error as error:
        assert error.message.strip()


def archived(path: Path, entries: list[tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for entry in entries:
            tar.addfile(entry)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [("../x", b"0", ""), ("/tmp/x", b"0", ""), ("b/l", b"2", "/etc/passwd"), ("b/l", b"1", "../../etc/passwd"),
     ("b/dev", b"3", ""), ("b/pipe", b"6", "")],
)  # fmt: skip
def test_hostile_members_of_an_archive_are_refused(name: str, kind: bytes, link: str, tmp_path: Path) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, link
    with pytest.raises(K3Error), archive.opened(archived(tmp_path / "a.tar.gz", [entry])) as directory:
        bundles.verify(directory)
