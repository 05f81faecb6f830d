"""`k3ctl triage` as people and scripts meet it."""

from __future__ import annotations

import json
from pathlib import Path

from k3ctl import cli

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_an_error_is_told_with_its_next_action_and_exit_code_1(capsys):
    assert cli.main(["triage", str(FIXTURES / "vllm-log-kv-too-small.txt")]) == 1
    out = capsys.readouterr().out
    assert "next  set max_model_len=688128 or less" in out
    assert "https://github.com/vllm-project/vllm/issues/28228" in out


def test_a_healthy_log_is_exit_code_0(capsys):
    assert cli.main(["triage", str(FIXTURES / "vllm-log-ok-b300-tp8-specialized.txt")]) == 0
    assert "no incident found" in capsys.readouterr().out


def test_the_json_names_cause_consequences_and_ranks(capsys):
    cli.main(["triage", "--json", str(FIXTURES / "vllm-log-ima-prefix-caching.txt")])
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["first_cause"] == "prefix-cache-illegal-access"
    assert data["incidents"][0]["who"] == ["Worker_TP0", "Worker_TP2", "Worker_TP4"]
    assert data["incidents"][1]["because"] == "prefix-cache-illegal-access"


def test_a_log_that_cannot_be_read_is_a_usage_error(capsys, tmp_path):
    assert cli.main(["triage", str(tmp_path / "none.log")]) == 2
    assert "none.log" in capsys.readouterr().err


def test_without_a_run_and_a_log_the_command_says_what_to_give(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    assert cli.main(["triage"]) == 2
    assert "k3ctl triage LOG" in capsys.readouterr().err
