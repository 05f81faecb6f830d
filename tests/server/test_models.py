"""One meaning of "the served model"."""

from __future__ import annotations

from typing import Any

import pytest

from k3ctl.errors import EngineError, UsageError
from k3ctl.server import models


class Fake:
    url = "http://h:1"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def json(self, *_: Any, **__: Any) -> Any:
        return self._answer


def client(*entries: Any) -> Any:
    return Fake({"object": "list", "data": list(entries)})


BASE = {"id": "k3", "root": "/models/k3", "parent": None, "max_model_len": 4096}


def test_aliases_and_adapters_do_not_make_several_models() -> None:
    alias = {**BASE, "id": "kimi"}
    adapter = {"id": "lora", "root": "/adapters/x", "parent": "k3"}
    assert models.served(client(BASE)) == "k3"
    assert models.served(client(BASE, alias, adapter)) == "k3"
    assert models.served(client(adapter, BASE)) == "k3"
    assert models.served(client(BASE, alias, adapter), "lora") == "lora"


def test_two_models_need_a_name() -> None:
    with pytest.raises(UsageError, match="2 models") as caught:
        models.served(client(BASE, {"id": "other"}))
    assert "other" in (caught.value.hint or "")
    with pytest.raises(EngineError, match="does not serve"):
        models.served(client(BASE), "other")


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"data": {}}, {"data": None}, {"data": [1, {"id": 3}, {}]}, "x"]
)
def test_what_is_no_list_of_models_is_an_error_not_a_traceback(answer: Any) -> None:
    with pytest.raises((EngineError, UsageError)):
        models.served(Fake(answer))  # type: ignore[arg-type]


def test_the_context_is_the_models_own() -> None:
    assert models.max_model_len(client(BASE), "k3") == 4096
    assert models.max_model_len(client({"id": "k3", "max_model_len": True}), "k3") is None
    assert models.max_model_len(client(BASE), "other") is None
