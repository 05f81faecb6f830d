"""Metrics pages and event streams for tests; the fixtures are vLLM expositions with invented numbers."""

from __future__ import annotations

from pathlib import Path

from k3ctl.server.prometheus import Page, parse
from k3ctl.signals import PREFIX
from k3ctl.telemetry.engines import WANTED
from k3ctl.telemetry.events import MetricsRead

FIXTURES = Path(__file__).parent.parent / "fixtures"
URL = "http://127.0.0.1:8000"


def fixture_page(name: str) -> Page:
    return parse((FIXTURES / name).read_bytes(), WANTED, required_prefix=PREFIX)


def page(**values: float) -> Page:
    """A one-engine page: keyword ``generation_tokens_total=5`` becomes ``vllm:generation_tokens_total``."""
    lines = "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in values.items())
    return parse(lines.encode(), WANTED, required_prefix=PREFIX)


def read(t: float, **values: float) -> MetricsRead:
    return MetricsRead(t, URL, page(**values))
