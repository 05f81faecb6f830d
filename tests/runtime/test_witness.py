"""The witness counts, publishes atomically, and never disturbs the engine."""

from __future__ import annotations

import json
import threading
import timeit
from pathlib import Path

import pytest

from runtime.witness import Key, Witness, prometheus_samples, read_pages

SPECIALIZED = Key("specialized", "decode", "eager", "")
PREFILL = Key("standard", "mixed", "eager", "prefill-in-batch")


def make(directory: Path | None = None, **about: object) -> Witness:
    return Witness({"rank": 0, "vllm": "0.33.0", "known_build": True, "refused": [], **about}, directory)


def test_steps_rows_and_tokens_add_up_by_path_and_reason() -> None:
    witness = make()
    witness.record(SPECIALIZED, rows=3, tokens=12)
    witness.record(SPECIALIZED, rows=2, tokens=8)
    witness.record(PREFILL, rows=4, tokens=70)
    steps = {(s["path"], s["reason"]): (s["steps"], s["rows"], s["tokens"]) for s in witness.page()["steps"]}
    assert steps == {("specialized", ""): (2, 5, 20), ("standard", "prefill-in-batch"): (1, 4, 70)}


def test_a_published_page_reads_back(tmp_path: Path) -> None:
    witness = make(tmp_path, rank=3)
    witness.record(SPECIALIZED, 1, 1)
    witness.publish()
    (page,) = read_pages(tmp_path)
    assert page["rank"] == 3
    assert page["steps"] == witness.page()["steps"]


def test_a_reader_never_sees_half_a_page(tmp_path: Path) -> None:
    witness = make(tmp_path)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            witness.record(SPECIALIZED, 1, 1)
            witness.publish()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            text = next(tmp_path.glob("rank0.json"), None)
            if text is not None:
                json.loads(text.read_text())
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"schema": "k3.witness/1", "st',
        "[]",
        '{"schema":"other"}',
        "\x00\xff",
        '{"schema": "k3.witness/1", "steps": null}',
        '{"schema": "k3.witness/1", "steps": [7]}',
        '{"schema": "k3.witness/1", "steps": [{"path": "standard"}]}',
        '{"schema": "k3.witness/1", "steps": [{"path": "standard", "kind": "", "mode": "", "reason": "", '
        '"steps": "many", "rows": 1, "tokens": 1}]}',
    ],
)
def test_a_torn_or_foreign_page_is_skipped(tmp_path: Path, content: str) -> None:
    make(tmp_path).publish()
    (tmp_path / "rank1.json").write_text(content)
    assert [page["rank"] for page in read_pages(tmp_path)] == [0]


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_damaged_page_is_mended_although_no_step_was_taken(tmp_path: Path, damage: str) -> None:
    witness = make(tmp_path)
    witness.record(SPECIALIZED, 1, 1)
    witness.publish()
    page = tmp_path / "rank0.json"
    page.write_text("") if damage == "truncate" else page.unlink()
    witness.publish()
    assert json.loads(page.read_text())["steps"] == witness.page()["steps"]


def test_an_unchanged_page_is_not_written_again(tmp_path: Path) -> None:
    witness = make(tmp_path)
    witness.publish()
    before = (tmp_path / "rank0.json").stat().st_ino, (tmp_path / "rank0.json").stat().st_mtime_ns
    witness.publish()
    assert before == ((tmp_path / "rank0.json").stat().st_ino, (tmp_path / "rank0.json").stat().st_mtime_ns)


def test_a_disk_that_refuses_is_reported_once_and_counting_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    witness = make(tmp_path / "file" / "below")
    for _ in range(3):
        witness.record(SPECIALIZED, 1, 1)
        witness.publish()
    assert witness.page()["steps"][0]["steps"] == 3
    assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1


def test_prometheus_samples_carry_our_own_prefix() -> None:
    witness = make()
    witness.record(PREFILL, 4, 70)
    samples = list(prometheus_samples([witness.page()]))
    assert all(name.startswith("k3_") for name, _, _ in samples)
    assert ("k3_tokens", 70.0) in [(name, value) for name, _, value in samples]


def test_recording_costs_far_less_than_a_step() -> None:
    """A sanity bound with much slack; the measured figure is in docs/log.md."""
    witness = make()
    seconds = timeit.timeit(lambda: witness.record(SPECIALIZED, 1, 1), number=20_000) / 20_000
    assert seconds < 20e-6
