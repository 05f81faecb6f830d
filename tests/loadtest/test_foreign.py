"""Results that k3ctl did not see: judged by the same guards, never quoted as if it had."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from k3ctl.cli import main
from k3ctl.errors import UsageError
from k3ctl.loadtest import driver, foreign, view
from k3ctl.loadtest.scrape import Sample
from tests.loadtest.results import FIXTURES

GOOD = FIXTURES / "guidellm-8k1k-consistent-c4.json"


def changed(tmp_path: Path, **figures: Any) -> Path:
    report = json.loads(GOOD.read_text())
    for name, value in figures.items():
        report["benchmarks"][0]["metrics"][name]["successful"].update(value)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(report))
    return path


def levels(summary: dict[str, Any]) -> dict[str, str]:
    return {f["guard"]: f["level"] for row in summary["rows"] for f in row["findings"]}


def test_a_good_report_is_valid_and_says_that_nobody_saw_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "judge", str(GOOD)]) == 0
    told = capsys.readouterr().out
    assert "NOT SEEN RUNNING" in told and "383.3" in told and "did not see this run" in told


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        ("guidellm-short-outputs-eos.json", "output-length"),
        ("guidellm-tokenizer-mismatch.json", "prompt-length"),
        ("guidellm-absurd-itl-std.json", "statistics"),
        ("guidellm-zero-success.json", "errors"),
        ("guidellm-max-errors-hit.json", "errors"),
        ("aiperf-osl-mismatch.json", "errors"),
    ],
)
def test_a_result_that_is_not_what_it_claims_exits_1(name: str, guard: str) -> None:
    assert levels(foreign.judged(FIXTURES / name))[guard] == "invalid"
    assert main(["bench", "judge", str(FIXTURES / name)]) == 1


def test_a_worse_file_is_never_better_judged(tmp_path: Path) -> None:
    assert foreign.judged(GOOD)["valid"]
    for figures in (
        {"output_token_count": {"mean": 400.0}},
        {"prompt_token_count": {"mean": 9000.0}},
        {"output_tokens_per_second": {"mean": 3000.0}},
        {"request_latency": {"mean": -1.0}},
        {"inter_token_latency_ms": {"std_dev": 1e12}},
    ):
        assert not foreign.judged(changed(tmp_path, **figures))["valid"], figures


def test_an_aiperf_folder_is_found_and_judged(tmp_path: Path) -> None:
    (tmp_path / "profile_export_aiperf.json").write_text((FIXTURES / "aiperf-result-0.13.0.json").read_text())
    summary = foreign.judged(tmp_path)
    assert summary["valid"] and summary["client"]["tool"] == "aiperf 0.13.0"
    assert summary["provenance"]["seen_running"] is False


def test_another_preset_can_be_asked_for_and_then_holds(tmp_path: Path) -> None:
    assert foreign.judged(GOOD, preset="8k1k")["valid"]
    assert levels(foreign.judged(GOOD, preset="smoke"))["output-length"] == "invalid"


def test_nothing_unknown_compares_as_equal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "judge", str(GOOD), "--preset", "8k1k", "--against", "published"])
    assert "not comparable because GPU is not known here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "not JSON"),
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "request_count"),
        ('{"benchmarks": []}', "format None"),
        ('{"metadata": {"version": 2}, "benchmarks": []}', "no benchmark"),
        ('{"metadata": {"version": 2}, "benchmarks": [{}]}', "damaged or of another version"),
        ('{"metadata": {"version": 3}, "benchmarks": [{}]}', "format 3"),
        ('{"metadata": {"version": 2}, "benchmarks": [7]}', "damaged or of another version"),
    ],
)
def test_a_file_that_is_no_result_is_one_clear_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=told):
        foreign.read(path)
    assert main(["bench", "judge", str(path)]) == 2


def test_a_missing_file_and_no_file_at_all(tmp_path: Path) -> None:
    assert main(["bench", "judge", str(tmp_path / "none.json")]) == 2
    assert main(["bench", "judge"]) == 2
    assert main(["bench", "smoke", str(GOOD)]) == 2


# the watchdog, and figures that a guard disbelieves


def test_the_watchdog_counts_from_the_last_event_or_work_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    follower = driver._Follower(driver.LiveState(steps=1, duration_s=10), None)
    now[0] = 150.0
    assert follower.still_s() == 50
    follower.sample(Sample(ts=0, mono=0, running=0, waiting=0))
    assert follower.still_s() == 50, "an idle server is no progress"
    follower.sample(Sample(ts=0, mono=0, running=1, waiting=0))
    assert follower.still_s() == 0
    now[0] = 200.0
    follower.sample(Sample(ts=0, mono=0))
    assert follower.still_s() == 0, "a page that does not tell is not an idle server"
    now[0] = 230.0
    follower.begins()
    assert follower.still_s() == 0


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan"])
def test_a_bad_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="K3CTL_BENCH_STALL_S"):
        driver._stall_s({driver.STALL_ENV: text})
    assert driver._stall_s({}) == driver.STALL_S
    assert driver._stall_s({**os.environ, driver.STALL_ENV: "7.5"}) == 7.5


@pytest.mark.parametrize(
    ("client_ms", "server_ms", "shown"),
    [(0.9, 20.0, "20.00 (server's)"), (19.0, 20.0, "19.00"), (0.9, None, "0.90")],
)
def test_a_time_per_token_that_cannot_be_is_not_the_headline(
    client_ms: float, server_ms: float | None, shown: str
) -> None:
    row = {
        **foreign.judged(GOOD)["rows"][0],
        "itl_ms": {"mean": client_ms, "p90": client_ms, "count": 100},
        "server": {"tpot_ms": server_ms},
        "user_tok_s": 1000 / client_ms,
        "interactivity_p90_tok_s": 1000 / client_ms,
    }
    assert view._per_token(row)["ITL ms"] == shown
