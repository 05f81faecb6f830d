"""HTTP exports of the witness, mounted by vLLM's API server when ``VLLM_PLUGINS`` names ``k3_witness``.

``GET /k3/witness`` returns every rank's page, ``GET /k3/metrics`` the same as Prometheus text; the series also join
``/metrics`` (from this host's pages: a scrape must not wait for an RPC). vLLM guards ``/v1`` only, so the routes ask
for the server's API key themselves, when there is one; ``/metrics`` stays as open as vLLM leaves it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from runtime import witness

logger = logging.getLogger("vllm.k3_witness")

ANSWER_S = 2.0
"""How long a route waits for the workers: they answer between two steps."""

_HELP = {
    "k3_steps": "Engine steps by path, content, graph mode and reason for not being specialized.",
    "k3_rows": "Sequences in those steps.",
    "k3_tokens": "Query tokens in those steps.",
    "k3_witness_info": "What the witness counts, per worker.",
}


def families(pages: Iterable[dict[str, Any]]) -> Iterable[Metric]:
    """Prometheus families of witness pages."""
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for name, labels, value in witness.prometheus_samples(pages):
        if name not in found:
            kind = GaugeMetricFamily if name.endswith("_info") else CounterMetricFamily
            found[name] = kind(name, _HELP[name], labels=list(labels))
        found[name].add_metric(list(labels.values()), value)
    return found.values()


class PageCollector:
    """Prometheus collector over this host's pages."""

    def collect(self) -> Iterable[Metric]:
        """Called at every scrape."""
        directory = witness.directory_from_env()
        return families(witness.read_pages(directory)) if directory else ()


class WitnessEndpoint:
    """vLLM endpoint plugin."""

    name = "k3_witness"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Mount the routes."""
        router = APIRouter(prefix="/k3", dependencies=[Depends(_with_key)])

        @router.get("/witness")
        async def table() -> dict[str, Any]:
            return {"schema": witness.TABLE_SCHEMA, "workers": await _pages(app)}

        @router.get("/metrics")
        async def metrics() -> Response:
            registry = CollectorRegistry()
            registry.register(_Fixed(await _pages(app)))
            return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Keep the engine client for RPC; join ``/metrics``."""
        state.k3_engine_client = engine_client
        state.k3_api_keys = _keys(args)
        REGISTRY.register(PageCollector())


def _keys(args: Any) -> list[str]:
    """The keys that vLLM accepts, by its own rule: ``--api-key``, else ``VLLM_API_KEY``."""
    given = getattr(args, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    return [key for key in ([given] if isinstance(given, str) else given) if key]


def _with_key(request: Request) -> None:
    """Refuse a request that lacks the server's key. Raises HTTPException (401)."""
    keys = getattr(request.app.state, "k3_api_keys", None)
    if keys is None:
        keys = _keys(None)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    told = given.encode() if scheme.lower() == "bearer" else b""
    if keys and not any(hmac.compare_digest(told, key.encode()) for key in keys):
        raise HTTPException(401, "Unauthorized")


class _Fixed:
    def __init__(self, pages: list[dict[str, Any]]) -> None:
        self.pages = pages

    def collect(self) -> Iterable[Metric]:
        return families(self.pages)


async def _pages(app: FastAPI) -> list[dict[str, Any]]:
    """Ask the workers; when they are busy, or without the worker extension, read this host's pages.

    vLLM asks the workers of one engine only. Those of its other data-parallel engines are read from this host's pages.
    """
    client = getattr(app.state, "k3_engine_client", None)
    if client is not None:
        try:
            answers = [page for page in await _ask(app.state, client) if page]
            answered = {page.get("engine", 0) for page in answers}
            return answers + [page for page in _on_disk() if page.get("engine", 0) not in answered]
        except TimeoutError:
            logger.debug("k3 witness: the workers are busy; reading this host's pages")
        except Exception as error:
            logger.warning("k3 witness: no answer from the workers (%s); reading this host's pages", error)
    return _on_disk()


def _on_disk() -> list[dict[str, Any]]:
    directory = witness.directory_from_env()
    return witness.read_pages(directory) if directory else []


async def _ask(state: Any, client: Any) -> list[dict[str, Any] | None]:
    """Every rank's page, asked for after this call began; TimeoutError when the workers are busy for long.

    The request to vLLM has no time limit and is never cancelled: vLLM 0.33.0 leaves the late answer of one that ran
    out in the workers' queue, where the next step takes it for its own, and the engine dies. So one may be left
    waiting, and while it waits no other is sent.
    """
    deadline = time.monotonic() + ANSWER_S
    asked: asyncio.Task[Any] | None = getattr(state, "k3_witness_asked", None)
    if asked is not None and not asked.done():
        await asyncio.wait({asked}, timeout=ANSWER_S)
        if not asked.done():
            raise TimeoutError
    state.k3_witness_asked = asked = asyncio.ensure_future(client.collective_rpc("k3_witness"))
    asked.add_done_callback(_seen)
    await asyncio.wait({asked}, timeout=deadline - time.monotonic())
    if not asked.done():
        raise TimeoutError
    return list(asked.result())


def _seen(asked: asyncio.Task[Any]) -> None:
    """An error that comes after its reader has gone is nobody's."""
    if not asked.cancelled():
        asked.exception()


def make() -> WitnessEndpoint:
    """Entry point ``vllm.endpoint_plugins: k3_witness``."""
    return WitnessEndpoint()
