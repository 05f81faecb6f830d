"""``k3ctl bench`` against the real CPU engine that ``k3ctl serve`` started: load, table, bundle, agent sessions."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
K3ctl = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def k3ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[K3ctl]:
    """``k3ctl(*argv)`` beside a served ``cpu-tiny``, with a state directory of its own."""
    if importlib.util.find_spec("guidellm") is None:
        pytest.skip("GuideLLM is not installed")
    state = tmp_path_factory.mktemp("state")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "K3CTL_STATE_DIR": str(state)}

    def run(*argv: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "k3ctl", *map(str, argv)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)

    served = run("serve", "--profile", "cpu-tiny", "--detach", "--port", "0")
    assert served.returncode == 0, served.stderr
    try:
        yield run
    finally:
        assert run("stop").returncode == 0


@pytest.fixture(scope="module")
def smoke(k3ctl: K3ctl) -> dict[str, Any]:
    """The JSON of one ``k3ctl bench smoke``."""
    done = k3ctl("bench", "smoke", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 1/2 c=1" in done.stderr
    return dict(json.loads(done.stdout)["data"])


def test_smoke_measures_the_server_that_serve_started(smoke: dict[str, Any]) -> None:
    assert smoke["valid"]
    assert smoke["deployment"]["profile"] == "cpu-tiny"
    assert smoke["deployment"]["gpu"] == "none (CPU)"
    for row in smoke["rows"]:
        assert row["requests"]["errored"] == 0
        assert row["output_tokens"]["mean"] == 16
        assert row["ttft_ms"]["mean"] > 0 and row["itl_ms"]["mean"] > 0
        assert 1.0 <= row["server"]["acceptance_length"] <= 4.0
        assert row["server"]["path"]["specialized"] > 0


def test_its_bundle_verifies_and_one_flipped_byte_of_any_file_does_not(
    k3ctl: K3ctl, smoke: dict[str, Any]
) -> None:
    bundle = Path(smoke["bundle"])
    assert k3ctl("bundle", "verify", bundle).returncode == 0
    files = sorted(path for path in bundle.rglob("*") if path.is_file())
    assert {"engine.json", "profile.yaml", "engine.log"} <= {path.name for path in files}
    from k3ctl.bundle import verify

    for path in files:
        original = path.read_bytes()
        path.write_bytes(bytes([original[0] ^ 1]) + original[1:])
        assert not verify.passed(verify.verify(bundle)), path.name
        path.write_bytes(original)
    assert verify.passed(verify.verify(bundle))


def test_its_report_is_one_page_with_plots(k3ctl: K3ctl, smoke: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert k3ctl("bundle", "report", smoke["bundle"], "--format", "html", "--out", page).returncode == 0
    text = page.read_text()
    assert text.count("<svg") >= 5
    assert "Acceptance per draft position" in text


def test_agent_sessions_are_replayed_against_the_real_engine(k3ctl: K3ctl) -> None:
    done = k3ctl("bench", Path(__file__).with_name("agentic-short.yaml"), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)["data"]
    assert [row["concurrency"] for row in data["rows"]] == [1, 3]
    for row in data["rows"]:
        assert row["requests"]["completed"] == 18
        # 18 requests are too few for a p90: an interval stands for it
        assert row["interactivity_p90_tok_s"] is None and row["itl_ms"]["p90"] is None
        low, high = row["itl_ms"]["intervals"]["p90"]
        assert low > 0 and (high is None or high >= low)
        assert row["server"]["prefix_hit_share"] > 0.1


COUNTED = ("--requests", 8, "--duration", 200, "--json")
"""As many requests in every run, however fast the machine is."""


def gated(k3ctl: K3ctl, base: object, new: object, *options: object) -> tuple[int, dict[str, Any]]:
    done = k3ctl("gate", base, new, *options, "--json")
    return done.returncode, dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def pair(k3ctl: K3ctl) -> tuple[str, str]:
    """Bundles of two runs under the same conditions."""
    bundles = []
    for _ in range(2):
        done = k3ctl("bench", "smoke", *COUNTED)
        assert done.returncode == 0, done.stdout + done.stderr
        bundles.append(str(json.loads(done.stdout)["data"]["bundle"]))
    return bundles[0], bundles[1]


def test_two_runs_under_the_same_conditions_are_gated_within_their_stated_noise(
    k3ctl: K3ctl, pair: tuple[str, str]
) -> None:
    first, second = pair
    regressions: list[set[tuple[str, int]]] = []
    for base, new in ((first, second), (second, first), (first, first)):
        _, answer = gated(k3ctl, base, new)
        found = answer["data"]["verdicts"]
        assert answer["data"]["not_compared"] == []
        assert {verdict["concurrency"] for verdict in found} == {1, 4}
        assert {"output_tok_s", "itl_ms", "ttft_ms"} <= {verdict["metric"] for verdict in found}
        assert all(verdict["resolution"] > 0 for verdict in found)
        regressions.append({(v["metric"], v["concurrency"]) for v in found if v["outcome"] == "regression"})
    assert not regressions[0] & regressions[1]
    assert not regressions[2]
    # beside other work this machine may be several times as slow in one of them
    assert gated(k3ctl, first, second, "--threshold", 95)[0] == 0
    assert gated(k3ctl, second, first, "--threshold", 95)[0] == 0


def test_a_changed_condition_is_refused_by_its_name(
    k3ctl: K3ctl, pair: tuple[str, str], tmp_path: Path
) -> None:
    preset = tmp_path / "smoke.yaml"
    text = (ROOT / "k3ctl" / "loadtest" / "presets" / "smoke.yaml").read_text()
    preset.write_text(text.replace("seed: 42", "seed: 7"))
    done = k3ctl("bench", preset, *COUNTED)
    assert done.returncode == 0, done.stdout + done.stderr
    other = json.loads(done.stdout)["data"]["bundle"]
    code, answer = gated(k3ctl, pair[0], other, "--threshold", 95)
    assert (code, answer["data"], answer["error"]["reasons"]) == (1, None, ["seed: 7 here, 42 there"])
    code, answer = gated(k3ctl, pair[0], other, "--threshold", 95, "--vary", "seed")
    assert (code, answer["data"]["varied"], answer["data"]["not_compared"]) == (0, ["seed"], [])
