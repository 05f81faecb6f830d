"""The witness route asks the workers and never harms them: vLLM's RPC must not run out of time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from runtime.witness import endpoint

STEP = {
    "path": "standard",
    "kind": "decode",
    "mode": "full",
    "reason": "",
    "steps": 1,
    "rows": 1,
    "tokens": 1,
}
PAGE = {"schema": "k3.witness/1", "rank": 0, "steps": []}


class Workers:
    """Stands in for vLLM's engine client: answers when ``free`` is set."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.asked = 0
        self.cancelled = 0
        self.error: Exception | None = None

    async def collective_rpc(self, method: str, **limits: Any) -> list[dict[str, Any] | None]:
        assert method == "k3_witness" and not limits.get("timeout"), (
            "a time limit would leave an answer behind"
        )
        self.asked += 1
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return [PAGE | {"asked": self.asked}, None]


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3_WITNESS_DIR", str(tmp_path))
    monkeypatch.setattr(endpoint, "ANSWER_S", 0.05)
    (tmp_path / "rank0.json").write_text(json.dumps(PAGE | {"from": "disk"}))


async def test_free_workers_are_asked_anew_every_time(on_disk: None) -> None:
    workers = Workers()
    workers.free.set()
    app: Any = SimpleNamespace(state=SimpleNamespace(k3_engine_client=workers))
    assert [(await endpoint._pages(app))[0]["asked"] for _ in range(3)] == [1, 2, 3]


async def test_busy_workers_are_asked_once_and_the_page_on_disk_answers_meanwhile(on_disk: None) -> None:
    workers = Workers()
    app: Any = SimpleNamespace(state=SimpleNamespace(k3_engine_client=workers))
    for _ in range(5):
        assert (await endpoint._pages(app))[0]["from"] == "disk"
    assert (workers.asked, workers.cancelled) == (1, 0)
    workers.free.set()
    assert (await endpoint._pages(app))[0]["asked"] == 2, "the old answer is not taken for a new one"
    assert workers.cancelled == 0


async def test_a_client_that_goes_away_leaves_the_request_alone(on_disk: None) -> None:
    workers = Workers()
    app: Any = SimpleNamespace(state=SimpleNamespace(k3_engine_client=workers))
    reader = asyncio.ensure_future(endpoint._pages(app))
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.sleep(0.01)
    assert (workers.asked, workers.cancelled) == (1, 0)


async def test_workers_without_the_extension_are_said_so_and_the_page_answers(
    on_disk: None, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers()
    workers.error = AttributeError("no k3_witness")
    workers.free.set()
    app: Any = SimpleNamespace(state=SimpleNamespace(k3_engine_client=workers))
    assert (await endpoint._pages(app))[0]["from"] == "disk"
    assert "no answer from the workers" in caplog.text


async def test_the_workers_of_other_engines_are_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM asks one engine; a page of that engine on disk is older than its answer and left out."""
    monkeypatch.setenv("K3_WITNESS_DIR", str(tmp_path))
    for rank, engine in ((0, 0), (1, 1)):
        page = {**PAGE, "rank": rank, "engine": engine, "from": "disk"}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(page | {"steps": [STEP]}))
    workers = Workers()
    workers.free.set()
    app: Any = SimpleNamespace(state=SimpleNamespace(k3_engine_client=workers))
    pages = await endpoint._pages(app)
    assert [(page["rank"], page.get("from")) for page in pages] == [(0, None), (1, "disk")]


def asking(keys: list[str] | None, monkeypatch: pytest.MonkeyPatch, variable: str = "") -> Any:
    """The real application with the routes mounted, as vLLM does it."""
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    monkeypatch.setenv("VLLM_API_KEY", variable)
    app = FastAPI()
    plugin = endpoint.make()
    plugin.attach_router(app)
    monkeypatch.setattr(endpoint, "REGISTRY", SimpleNamespace(register=lambda _: None))
    asyncio.run(plugin.init_state(None, app.state, SimpleNamespace(api_key=keys)))
    return TestClient(app)


@pytest.mark.parametrize("route", ["/k3/witness", "/k3/metrics"])
@pytest.mark.parametrize(
    ("keys", "variable"),
    [(["one", "two"], ""), (None, "two"), ([], "two")],
    ids=["option", "variable", "empty"],
)
def test_the_routes_ask_for_the_servers_key(
    keys: list[str] | None, variable: str, route: str, on_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = asking(keys, monkeypatch, variable)
    for header in (None, "two", "Basic two", "Bearer", "Bearer tw", "Bearer two ", "Bearer \u00e9"):
        sent = {} if header is None else {"Authorization": header.encode()}
        assert client.get(route, headers=sent).status_code == 401, header
    assert client.get(route, headers={"Authorization": "bearer two"}).status_code == 200


def test_without_a_key_the_routes_are_open_as_vllm_is(on_disk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    client = asking(None, monkeypatch)
    assert client.get("/k3/witness").json()["workers"][0]["from"] == "disk"
