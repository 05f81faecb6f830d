from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from k3ctl.bundle import archive, seal, verify
from k3ctl.bundle.parts import Surroundings
from k3ctl.engine.rundir import Run
from k3ctl.errors import UsageError
from k3ctl.host.types import Active, Triad
from k3ctl.machine import measured
from tests.bundle.planted import SECRETS
from tests.loadtest.results import FIXTURES

Make = Callable[..., Path]
FILES = (
    "SHA256SUMS", "statement.intoto.json", "manifest.json", "summary.json", "command.txt", "environment.json",
    "hardware.json", "raw/ask.json", "raw/client.log", "raw/events.jsonl", "raw/guidellm.json", "raw/outcome.json",
    "raw/samples.jsonl",
)  # fmt: skip


def failing(directory: Path) -> set[str]:
    return {check.name for check in verify.verify(directory) if not check.ok}


def test_a_fresh_bundle_verifies(make_bundle: Make) -> None:
    assert failing(make_bundle()) == set()


def test_the_list_of_files_below_is_complete(make_bundle: Make) -> None:
    directory = make_bundle()
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert found == set(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0], ids=["first", "middle", "last"])
def test_one_flipped_byte_anywhere_fails(make_bundle: Make, name: str, where: float) -> None:
    directory = make_bundle()
    data = bytearray((directory / name).read_bytes())
    data[int(where * (len(data) - 1))] ^= 0x01
    (directory / name).write_bytes(data)
    assert failing(directory)


def test_a_missing_an_added_and_a_linked_file_fail(make_bundle: Make) -> None:
    directory = make_bundle()
    (directory / "raw" / "client.log").unlink()
    (directory / "extra.txt").write_text("x")
    (directory / "link").symlink_to("extra.txt")
    (check,) = [check for check in verify.verify(directory) if check.name == "files"]
    assert "raw/client.log is missing" in check.detail
    assert "extra.txt is not listed" in check.detail
    assert "link is a link" in check.detail


def test_a_better_number_with_fresh_hashes_is_still_found_out(make_bundle: Make) -> None:
    directory = make_bundle()
    summary = json.loads((directory / "summary.json").read_text())
    summary["rows"][0]["output_tok_s"] *= 1.5
    (directory / "summary.json").write_text(json.dumps(summary))
    seal.seal(directory, verify.manifest(directory))
    assert failing(directory) == {"summary"}


def test_a_validity_that_the_summary_does_not_give_is_found_out(make_bundle: Make) -> None:
    directory = make_bundle("guidellm-short-outputs-eos.json")
    manifest = verify.manifest(directory)
    assert manifest["validity"]["status"] == "invalid"
    manifest["validity"] = {"status": "valid", "reasons": [], "flags": []}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    seal.seal(directory, manifest)
    assert failing(directory) == {"manifest"}


def test_no_planted_secret_enters_the_bundle(make_bundle: Make, planted_run: Run) -> None:
    directory = make_bundle(around=Surroundings(run=planted_run))
    text = b"\n".join(path.read_bytes() for path in directory.rglob("*") if path.is_file()).decode()
    assert [secret for secret in SECRETS if secret in text] == []
    manifest = verify.manifest(directory)
    assert set(manifest["redactions"]) >= {"raw/engine.log", "raw/client.log"}
    assert manifest["engine_log"]["bytes"] == planted_run.engine_log.stat().st_size
    assert failing(directory) == set()


def test_raw_results_keep_every_byte_when_they_hold_no_secret(make_bundle: Make) -> None:
    directory = make_bundle()
    for name, source in (
        ("guidellm.json", "guidellm-8k1k-consistent-c4.json"),
        ("events.jsonl", "bench-events-cpu-tiny.jsonl"),
    ):
        assert (directory / "raw" / name).read_bytes() == (FIXTURES / source).read_bytes()


def test_the_same_bundle_packs_to_the_same_bytes_anywhere(make_bundle: Make, tmp_path: Path) -> None:
    directory = make_bundle()
    copy = tmp_path / "elsewhere" / directory.name
    shutil.copytree(directory, copy)
    first = archive.pack(directory, tmp_path / "a.tar.gz").read_bytes()
    second = archive.pack(copy, tmp_path / "b.tar.gz").read_bytes()
    assert first == second


def test_an_archive_verifies_like_its_directory(make_bundle: Make, tmp_path: Path) -> None:
    packed = archive.pack(make_bundle(), tmp_path / "a.tar.gz")
    with archive.opened(packed) as directory:
        assert failing(directory) == set()


def test_an_archive_is_never_overwritten(make_bundle: Make, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        archive.pack(make_bundle(), tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").read_text() == "precious"


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_damaged_archive_is_one_clear_line(make_bundle: Make, tmp_path: Path, damage: str) -> None:
    packed = archive.pack(make_bundle(), tmp_path / "a.tar.gz")
    data = packed.read_bytes()
    packed.write_bytes(data[: len(data) // 2] if damage == "cut" else b"not an archive")
    with pytest.raises(UsageError, match="damaged or no bundle archive"), archive.opened(packed):
        pass


def test_an_archive_cannot_write_outside_its_directory(tmp_path: Path) -> None:
    import io
    import tarfile

    hostile = tmp_path / "h.tar.gz"
    with tarfile.open(hostile, "w:gz") as tar:
        entry = tarfile.TarInfo("../../escaped.txt")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(UsageError), archive.opened(hostile):
        pass
    assert not list(tmp_path.parent.rglob("escaped.txt"))


def test_something_else_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a bundle"):
        verify.verify(tmp_path)
    with pytest.raises(UsageError, match="does not exist"), archive.opened(tmp_path / "nowhere"):
        pass


def test_the_statement_names_the_digest_of_the_sums(make_bundle: Make) -> None:
    directory = make_bundle()
    statement = json.loads((directory / seal.STATEMENT).read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [
        {"name": "SHA256SUMS", "digest": {"sha256": seal.digest(directory / seal.SUMS)}}
    ]


def test_sha256sum_itself_accepts_the_sums(make_bundle: Make) -> None:
    import subprocess

    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum here")
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", seal.SUMS], cwd=make_bundle(), capture_output=True
    )
    assert done.returncode == 0, done.stdout


def test_an_interrupted_run_becomes_a_partial_bundle(make_result: Make) -> None:
    from k3ctl.bundle.write import write

    directory = make_result(concurrency=(1, 4, 16))
    (directory / "raw" / "guidellm.json").unlink()
    outcome = json.loads((directory / "raw" / "outcome.json").read_text())
    (directory / "raw" / "outcome.json").write_text(json.dumps({**outcome, "interrupted": True}))
    manifest = write(directory, Surroundings(), environment={})
    assert manifest["validity"]["status"] == "partial"
    assert "c=16: not measured" in manifest["validity"]["reasons"]
    assert failing(directory) == set()


@pytest.mark.parametrize(("uuid", "held"), [("GPU-7", True), ("GPU-8", False)])
def test_what_doctor_measured_of_these_gpus_is_in_the_bundle(
    uuid: str,
    held: bool,
    make_bundle: Make,
    planted_run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path / "measured"))
    measured.keep(Active((Triad(0, "GPU-7", 4100.0, 4090.0, True),)), now=5.0)
    run = dataclasses.replace(
        planted_run, launch={**planted_run.launch, "gpus": [{"index": 0, "uuid": uuid}]}
    )
    directory = make_bundle(around=Surroundings(run=run))
    assert (directory / "active.json").is_file() == held
    if held:
        found = json.loads((directory / "active.json").read_text())
        assert found["active"]["triads"][0]["gb_s"] == 4100.0
    assert verify.passed(verify.verify(directory))
