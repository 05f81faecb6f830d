from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.errors import EngineError
from k3ctl.loadtest import target
from tests.loadtest import mock_server


def test_a_relative_tokenizer_becomes_absolute_because_the_client_runs_elsewhere(
    mock: mock_server.Server, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tokenizer.parent)
    found = target.from_url(mock.url, model=None, tokenizer=tokenizer.name)
    assert found.tokenizer == str(tokenizer)
    assert target.from_url(mock.url, model=None, tokenizer="org/name").tokenizer == "org/name"
    assert found.model == "k3-tiny"


def test_another_model_than_the_served_one_is_an_engine_error(
    mock: mock_server.Server, tokenizer: Path
) -> None:
    wrong = target.Target(url=mock.url, model="other", tokenizer=str(tokenizer))
    with pytest.raises(EngineError) as caught:
        target.preflight(wrong, target.Client(mock.url))
    assert caught.value.hint == "it serves: k3-tiny"
