"""A server is ready when it has answered a request, not when it listens."""

from __future__ import annotations

import time

from engine_helpers import NOTHING, tiny, until

from k3ctl.engine import launch, rundir
from k3ctl.engine.client import Client
from k3ctl.errors import EngineError


def test_a_server_that_listens_but_answers_no_request_is_not_ready(
    fake_python, leftovers, monkeypatch, tmp_path
):
    hung = tmp_path / "hung"
    hung.touch()
    monkeypatch.setenv("FAKE_HUNG_FILE", str(hung))
    with launch.launch(tiny(), port=0, timing={"canary_timeout_s": 0.5}) as engine:
        client = Client(engine.url)
        until(lambda: _healthy(client))
        time.sleep(2.0)  # several looks of the supervisor
        assert rundir.read(engine.run_dir).state == "starting"
        hung.unlink()
        assert engine.wait_ready().state == "ready"
        assert client.load().generated_tokens >= 1, "the canary was a request"
    assert leftovers() == NOTHING


def _healthy(client: Client) -> bool:
    try:
        return client.healthy()
    except EngineError:
        return False
