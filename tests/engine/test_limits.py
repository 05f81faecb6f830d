"""Start-up time limits from checkpoint size and read rate."""

from __future__ import annotations

from pathlib import Path

from k3ctl.engine import limits
from k3ctl.engine.limits import Checkpoint


def test_the_limit_follows_size_and_measured_rate():
    slow = Checkpoint(1_560_000_000_000, (), read_bytes_s=1e9)
    fast = Checkpoint(1_560_000_000_000, (), read_bytes_s=20e9)
    assert limits.variables(slow, {})[limits.READY] == str(2 * 1560 + 900)
    assert limits.variables(fast, {})[limits.READY] == str(2 * 78 + 900)


def test_a_checkpoint_that_has_to_be_downloaded_gets_hours():
    assert limits.variables(None, {})[limits.READY] == "21600"


def test_what_the_user_set_is_left_alone():
    assert limits.variables(None, {limits.READY: "42", limits.EXECUTE: "1"}) == {}


def test_a_local_directory_and_the_hub_cache_are_found(tmp_path: Path):
    local = tmp_path / "model"
    local.mkdir()
    (local / "a.safetensors").write_bytes(b"x" * 1000)
    (local / "b.safetensors").write_bytes(b"x" * 24)
    found = limits.find(str(local), None, {})
    assert found is not None and found.size_bytes == 1024
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "m.safetensors").write_bytes(b"y" * 7)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc\n")
    cached = limits.find("org/name", None, {"HF_HUB_CACHE": str(tmp_path / "hub")})
    assert cached is not None and cached.size_bytes == 7
    assert limits.find("org/other", None, {"HF_HOME": str(tmp_path)}) is None


def test_the_read_rate_is_measured_from_the_largest_file(tmp_path: Path):
    big = tmp_path / "big.safetensors"
    big.write_bytes(b"z" * (4 << 20))
    assert limits.read_rate((big,)) > 0
    assert limits.read_rate((tmp_path / "big.safetensors",)) > 1 << 20
