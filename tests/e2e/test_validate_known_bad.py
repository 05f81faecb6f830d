"""`k3ctl known-bad --try` on the real CPU engine: every fault that the demo can show is caught by its check."""

from __future__ import annotations

import json

import pytest

from k3ctl.knownbad.modes import MODES
from tests.e2e.conftest import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
NOT_SHOWN = {"tool-drop", "tool-empty", "other-model"}
"""The demo has no parser of tool calls, and there is one server."""


def test_every_fault_is_caught_by_its_check(server: Server) -> None:
    done = server.k3ctl("known-bad", "--try", "--url", server.url, "--json", timeout=2900)
    told = json.loads(done.stdout)["data"]
    caught = {trial["fault"]: trial["caught"] for trial in told["trials"]}
    assert caught == {"sound": None} | {name: None if name in NOT_SHOWN else True for name in MODES}
    assert {trial["fault"]: trial["strays"] for trial in told["trials"] if trial["strays"]} == {}
    assert done.returncode == 1  # what was not tried was not shown
