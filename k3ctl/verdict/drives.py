"""Drives a server and reads its counters before and after: the only I/O of a verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from k3ctl.errors import EngineError
from k3ctl.server import witness
from k3ctl.server.client import BadAnswer, Client
from k3ctl.server.witness import WorkerPage
from k3ctl.verdict.evidence import Phase

SETTLE_S = 5.0
"""How long counters may lag behind a finished request."""
POLL_S = 0.1
PAGE_PERIOD_S = 0.3
"""A little longer than a worker takes to write a page that changed."""
REQUEST_TIMEOUT_S = 300.0
PROMPT_TOKENS = 8


@dataclass(frozen=True)
class Reading:
    """Witness pages and the server's own counters at one moment; None where there are no metrics."""

    pages: tuple[WorkerPage, ...]
    generated: float | None
    prompted: float | None
    busy: bool


def drive(client: Client, model: str, rows: int, tokens: int) -> Phase:
    """Send ``rows`` concurrent requests of ``tokens`` tokens each and read the counters around them.

    Raises:
        EngineError: the server stopped answering, or answered an error.
    """
    before = read(client)
    started = time.monotonic()
    with ThreadPoolExecutor(rows) as pool:
        usages = list(pool.map(lambda row: _complete(client, model, row, tokens), range(rows)))
    seconds = time.monotonic() - started
    generated = sum(u["completion_tokens"] for u in usages)
    prompted = sum(u["prompt_tokens"] for u in usages)
    after = settled(client, before, generated)
    return Phase(
        rows=rows,
        generated=generated,
        prompted=prompted,
        seconds=seconds,
        served_generated=difference(before.generated, after.generated),
        served_prompted=difference(before.prompted, after.prompted),
        busy_before=before.busy,
        before=before.pages,
        after=after.pages,
    )


def warm_up(client: Client, model: str) -> None:
    """One token, so that first-use costs stay out of the drive, and so that a dead engine shows before it."""
    client.canary(model, timeout_s=REQUEST_TIMEOUT_S)
    reading = read(client)
    deadline = time.monotonic() + SETTLE_S
    while reading.busy and time.monotonic() < deadline:
        time.sleep(POLL_S)
        reading = read(client)


def _complete(client: Client, model: str, row: int, tokens: int) -> Mapping[str, int]:
    # distinct prompts: a shared prefix would turn prefills into cache hits and make runs incomparable
    prompt = [7 + (row * PROMPT_TOKENS + i) % 200 for i in range(PROMPT_TOKENS)]
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = client.json("/v1/completions", body, timeout_s=REQUEST_TIMEOUT_S)
    usage = answer.get("usage") if isinstance(answer, dict) else None
    counted = usage if isinstance(usage, dict) else {}
    prompted, generated = counted.get("prompt_tokens"), counted.get("completion_tokens")
    if type(prompted) is not int or type(generated) is not int or min(prompted, generated) < 0:
        raise EngineError(f"`{client.url}/v1/completions` answered without a token count")
    return {"prompt_tokens": prompted, "completion_tokens": generated}


def read(client: Client) -> Reading:
    """One reading. Raises Unreachable."""
    pages = witness.pages(client)
    try:
        load = client.load()
    except BadAnswer:
        return Reading(pages, None, None, False)
    return Reading(pages, load.generated_tokens, load.prompt_tokens, load.running + load.waiting > 0)


def settled(client: Client, before: Reading, generated: int) -> Reading:
    """The first reading in which the server has counted what it sent us (or the last one before the deadline).

    Pages that are read from disk come a moment later: they are settled when two readings agree.
    """
    deadline = time.monotonic() + SETTLE_S
    reading = before
    while True:
        earlier, reading = reading, read(client)
        counted = difference(before.generated, reading.generated)
        if (counted is None or counted >= generated) and not reading.busy and _same(earlier, reading):
            return reading
        if time.monotonic() > deadline:
            return reading
        time.sleep(PAGE_PERIOD_S)


def _same(earlier: Reading, later: Reading) -> bool:
    return [page.counts for page in earlier.pages] == [page.counts for page in later.pages]


def difference(before: float | None, after: float | None) -> float | None:
    """What a counter counted; None where it was not read."""
    return None if before is None or after is None else after - before
