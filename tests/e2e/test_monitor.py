"""`k3ctl monitor --once` against the real server: the figures are those of a load that the test itself sent."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from k3ctl.engine import rundir
from tests.e2e.conftest import Server, post


def once(server: Server, *args: str) -> dict[str, Any]:
    done = server.k3ctl("monitor", "--json", "--no-gpus", "--url", server.url, *args)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)["data"]
    return data


def complete(server: Server, number: int, tokens: int) -> dict[str, int]:
    body = {"model": "k3-tiny", "prompt": f"{number} bottles", "max_tokens": tokens, "ignore_eos": True}
    usage: dict[str, int] = post(f"{server.url}/v1/completions", body)["usage"]
    return usage


def test_token_and_request_counts_are_those_of_the_load(server: Server) -> None:
    with rundir.quiet(server.run_dir):
        before = once(server)["load"]
        usages = [complete(server, number, 17 + number) for number in range(6)]
        after = once(server)["load"]
    grown = {name: after["totals"][name] - before["totals"].get(name, 0) for name in after["totals"]}
    assert (
        grown["generation_tokens"]
        == sum(usage["completion_tokens"] for usage in usages)
        == sum(range(17, 23))
    )
    assert grown["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert after["finished"]["length"] - before["finished"].get("length", 0) == 6
    assert after["acceptance"]["draft_tokens"] == 3
    assert 1.0 <= after["acceptance"]["length"] <= 4.0
    # every generated token but a request's first comes from a verify step: drafts + accepted
    assert grown["drafts"] + grown["accepted_tokens"] >= grown["generation_tokens"] - 6


def test_while_it_serves_the_snapshot_shows_rates_the_path_and_the_run(server: Server) -> None:
    looked = threading.Event()

    def keep_busy(seed: int) -> None:
        while not looked.is_set():
            complete(server, seed, 300)

    loads = [threading.Thread(target=keep_busy, args=(seed,)) for seed in (98, 99)]
    for load in loads:
        load.start()
    try:
        data = once(server, "--interval", "2")
    finally:
        looked.set()
        for load in loads:
            load.join()
    assert data["servers"][0]["state"] == "up"
    assert data["servers"][0]["model"] == "k3-tiny"
    assert 1 <= data["load"]["running"] <= 2
    assert data["load"]["output_tok_s"] > 0
    assert data["path"]["known"] is True
    assert data["path"]["decode_backend"] == "latency_specialized"
    assert data["path"]["known_build"] is True
    assert data["path"]["engagement"] == pytest.approx(1.0, abs=0.2)
    assert "ready" in {stage["stage"] for stage in data["stages"]}
    assert [alert["rule"] for alert in data["alerts"] if alert["severity"] == "fail"] == []


def test_the_text_says_what_the_json_says(server: Server) -> None:
    done = server.k3ctl("monitor", "--once", "--no-gpus")
    assert done.returncode == 0, done.stderr
    assert f"server      {server.url}  up  k3-tiny" in done.stdout
    assert "decode steps specialized" in done.stdout
    assert "acceptance length" in done.stdout
