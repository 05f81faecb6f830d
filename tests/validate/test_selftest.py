"""Can the checks fail? Every known-bad server is seen by its check, and by none that the fault is none of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from k3ctl.canary.prompts import PROMPTS
from k3ctl.cli import main
from k3ctl.errors import UsageError
from k3ctl.knownbad.modes import MODES
from k3ctl.server.client import Client
from k3ctl.validate import runner, selftest, tiers
from k3ctl.validate.facts import Facts
from k3ctl.validate.record import Check, Judged, Outcome, Result
from k3ctl.validate.selftest import Trial
from k3ctl.validate.session import Session
from tests.knownbad import scripted
from tests.knownbad.toy import Toy

FACTS = Facts(
    model="toy",
    platform="cuda",
    max_model_len=1024,
    random_weights=True,
    tool_parser="kimi_k3",
    draft_tokens=3,
    max_num_seqs=16,
    backend="latency_specialized",
)
ROTE = {prompt.text: "so it is]]" + prompt.told for prompt in PROMPTS[:2]}
SLOW = frozenset({"temperature", "greedy", "truncation", "abort"})
"""Their checks draw hundreds of tokens, or need an engine that holds requests; they are tried on the real one."""


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    """Every fault under its own check, after a sound server."""
    modes = [mode for mode in MODES.values() if mode.name not in SLOW]
    checks = tiers.checks(["canary", "features"])
    # a model that is asked for three calls and gives three
    able = {"tool-drop": replace(FACTS, random_weights=False)}
    found: dict[str, Trial] = {}
    with scripted.serve(Toy(ROTE), step_s=0.003) as server, scripted.serve() as other:
        for known, some in (
            (FACTS, [m for m in modes if m.name not in able]),
            (able["tool-drop"], [MODES["tool-drop"]]),
        ):
            run = selftest.run(server.url, known, some, checks, print, other=other.url)
            found |= {trial.name: trial for trial in run if trial.name not in found}
    return found


def test_a_sound_server_fails_nothing_through_the_proxy(trials: dict[str, Trial]) -> None:
    assert not trials["sound"].seen, trials["sound"].results


@pytest.mark.parametrize("fault", sorted(set(MODES) - SLOW))
def test_a_fault_is_caught_by_its_check(trials: dict[str, Trial], fault: str) -> None:
    assert trials[fault].caught is True and not trials[fault].strays, trials[fault].named


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_no_check_cries_for_a_fault_of_another_kind() -> None:
    """Every check of both tiers on every fault."""
    checks = tiers.checks(["canary", "features"])
    with scripted.serve(Toy(ROTE), step_s=0.003) as server, scripted.serve() as other:
        found = list(
            selftest.run(server.url, FACTS, list(MODES.values()), checks, print, every=True, other=other.url)
        )
    assert {trial.name: trial.strays for trial in found if trial.strays} == {}


@pytest.mark.parametrize("error", [KeyError("choices"), IndexError("0"), ValueError("x"), TypeError("None")])
def test_an_answer_of_another_shape_is_unknown_and_no_traceback(error: Exception) -> None:
    def run(_: Session) -> Judged:
        raise error

    with scripted.serve() as server:
        client = Client(server.url)
        found = runner.one(Session(client, FACTS), Check("canary.x", "", run))
        client.close()
    assert found.outcome is Outcome.UNKNOWN and "shape" in found.statement


def result(check: str, outcome: Outcome) -> Result:
    return Result(check, "", outcome, "", {}, None, 0.0, 0.0)


NAMED = MODES["flood"].check


@pytest.mark.parametrize(
    ("sound", "bad", "caught"),
    [
        (Outcome.PASSED, Outcome.FAILED, True),
        (Outcome.PASSED, Outcome.PASSED, False),
        (Outcome.PASSED, Outcome.UNKNOWN, False),
        (Outcome.PASSED, Outcome.VOID, False),
        (Outcome.PASSED, Outcome.NOT_RUN, None),
        (Outcome.FAILED, Outcome.FAILED, None),  # a check that is red on a sound server has seen nothing
        (Outcome.VOID, Outcome.FAILED, None),
        (Outcome.UNKNOWN, Outcome.FAILED, True),
        (
            Outcome.NOT_RUN,
            Outcome.FAILED,
            True,
        ),  # nothing to see on the sound server, and something on the bad one
        (Outcome.UNKNOWN, Outcome.PASSED, None),
        (Outcome.NOT_RUN, Outcome.NOT_RUN, None),
    ],
)
def test_caught_means_that_the_check_fails_and_did_not_on_the_sound_server(
    sound: Outcome, bad: Outcome, caught: bool | None
) -> None:
    assert Trial(MODES["flood"], (result(NAMED, bad),), {NAMED: sound}).caught is caught


def test_another_server_is_not_tried_without_one() -> None:
    with scripted.serve() as server:
        checks = tiers.checks(["canary"], ["canary.floods"])
        _, trial = selftest.run(server.url, FACTS, [MODES["other-model"]], checks, print)
    assert trial.caught is None and not trial.results


def test_a_void_fault_is_caught_by_a_void_result_only() -> None:
    check = MODES["fallback"].check
    for outcome in Outcome:
        trial = Trial(MODES["fallback"], (result(check, outcome),), {check: Outcome.PASSED})
        assert trial.caught is (None if outcome is Outcome.NOT_RUN else outcome is Outcome.VOID)


def test_a_check_that_cries_for_a_fault_of_another_kind_is_named_once() -> None:
    results = (result(NAMED, Outcome.FAILED), result("features.seeds", Outcome.FAILED))
    known = {NAMED: Outcome.PASSED, "features.seeds": Outcome.PASSED}
    assert Trial(MODES["flood"], results, known).strays == ("features.seeds",)
    assert Trial(MODES["flood"], results, {**known, "features.seeds": Outcome.FAILED}).strays == ()
    assert Trial(None, results).strays == (NAMED, "features.seeds")


def test_faults_are_chosen_by_name_or_pattern() -> None:
    assert [mode.name for mode in selftest.chosen(["tool-*"])] == ["tool-drop", "tool-empty"]
    assert len(selftest.chosen(())) == len(MODES)
    with pytest.raises(UsageError, match="flod"):
        selftest.chosen(["flod"])


def test_every_name_of_a_check_in_the_table_of_faults_is_one() -> None:
    for mode in MODES.values():
        for pattern in (mode.check, *mode.also):
            assert tiers.checks(tiers.TIERS, [pattern]), pattern


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["known-bad", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_the_list_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = command(capsys)
    assert code == 0 and {fault["name"] for fault in told["data"]["faults"]} == set(MODES)


@pytest.mark.parametrize(
    "words",
    [
        ("flod",),
        ("other-model", "--url", "http://127.0.0.1:9"),
        ("tool-*", "--url", "http://127.0.0.1:9"),
        ("flood", "--every"),
        ("--every",),
    ],
)
def test_what_is_not_meant_is_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, told = command(capsys, *words)
    assert code == 2 and told["error"]["message"]


def test_a_server_that_is_gone_is_no_fault_that_was_caught(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = command(capsys, "flood", "--try", "--url", "http://127.0.0.1:9")
    assert code == 4 and told["data"] is None


def test_the_command_tries_a_fault_and_exits_1_when_it_is_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted.serve() as server:
        code, told = command(capsys, "schema", "tool-drop", "--try", "--url", server.url)
        assert (code, told["data"]["caught"]) == (0, 2), told
        assert [trial["fault"] for trial in told["data"]["trials"]] == ["sound", "schema", "tool-drop"]
        harmless = MODES["schema"].__class__("schema", "nothing", "nothing", "canary.json-schema")
        monkeypatch.setitem(MODES, "schema", harmless)  # type: ignore[index]
        code, told = command(capsys, "schema", "--try", "--url", server.url)
        assert (code, told["data"]["caught"]) == (1, 0)
