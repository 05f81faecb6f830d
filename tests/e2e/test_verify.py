"""`k3ctl verify` against the real server: proved, and not engaged with the reason that accounts for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Server


def test_the_profiles_server_is_proved_with_counted_steps(server: Server) -> None:
    done = server.k3ctl("verify", "--json")
    data = json.loads(done.stdout)["data"]
    assert (done.returncode, data["verdict"]) == (0, "proved"), (data["statement"], data["notes"])
    specialized = [s for drive in data["drives"] for s in drive["steps"] if s["path"] == "specialized"]
    assert sum(s["steps"] for s in specialized) > 20


def test_a_stock_server_is_not_engaged_and_says_what_to_change(other_server: Callable[..., Server]) -> None:
    stock = other_server("--profile", "cpu-tiny", "--set", "additional_config.decode_backend=auto")
    done = stock.k3ctl("verify")
    assert done.returncode == 1
    assert "not engaged" in done.stdout
    assert "backend-off" in done.stdout
    assert "latency_specialized" in done.stdout


def reasons(batch: dict) -> set[str]:
    return {s["reason"] for s in batch["steps"] if s["path"] == "standard"}


def test_our_own_prompts_among_decodes_are_told_and_do_not_spoil_the_proof(server: Server) -> None:
    """Sixteen sequences of four tokens fill the 64 rows; they arrive while others decode already."""
    # long enough that the sixteen run together for most of the drive, however slowly they arrive
    done = server.k3ctl("verify", "--rows", "16", "--tokens", "192", "--json")
    data = json.loads(done.stdout)["data"]
    batch = data["drives"][1]
    assert batch["specialized_share"] == 1
    assert "prefill-in-batch" in reasons(batch)
    assert data["verdict"] == "proved", data["notes"]


@pytest.mark.slow
def test_a_profiler_window_of_a_server_without_gpus_proves_nothing(
    other_server: Callable[..., Server], tmp_path: Path
) -> None:
    settings = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "ignore_frontend": "true"}
    flags = [word for key, value in settings.items() for word in ("--set", f"profiler_config.{key}={value}")]
    profiled = other_server("--profile", "cpu-tiny", *flags)
    done = profiled.k3ctl("verify", "--trace", "--json")
    data = json.loads(done.stdout)["data"]
    assert done.returncode == 1
    assert data["verdict"] == "unknown"
    assert [Path(file).parent for file in data["files"]] == [tmp_path]
    assert [rank["kernels"] for rank in data["ranks"]] == [0]


@pytest.mark.slow
def test_more_than_64_rows_are_not_engaged_and_named(other_server: Callable[..., Server]) -> None:
    """Twenty sequences of four tokens are 80 rows."""
    wide = other_server("--profile", "cpu-tiny", "--set", "max_num_seqs=20")
    done = wide.k3ctl("verify", "--rows", "20", "--json")
    data = json.loads(done.stdout)["data"]
    assert done.returncode == 1
    assert (data["verdict"], data["reason"]) == ("not engaged", "rows-over-limit")
    assert data["drives"][0]["specialized_share"] == 1
    assert "rows-over-limit" in reasons(data["drives"][1])
