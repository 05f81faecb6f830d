"""The one way from a check to the server: it counts what was sent and got, so that an interval can be accounted for."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from k3ctl.server.client import BadAnswer, Client, Unreachable
from k3ctl.validate.facts import Facts
from k3ctl.validate.interval import Seen, rows_of
from k3ctl.verdict import drives
from k3ctl.verdict.drives import Reading
from k3ctl.verdict.evidence import Phase

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMEOUT_S = 600.0
UNBOUNDED = float("inf")

Answer = Mapping[str, Any]
T = TypeVar("T")


@dataclass
class Tally:
    """What an interval's requests came to."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    open_requests: int = 0
    open_tokens: float = 0.0
    running: int = 0
    peak: int = 0


@dataclass
class Session:
    """One server under validation. ``options``: free options of the command; ``other``: a second server."""

    client: Client
    facts: Facts
    options: Mapping[str, Any] = field(default_factory=dict)
    other: Session | None = None
    timeout_s: float = TIMEOUT_S
    _tally: Tally = field(default_factory=Tally)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """The server's root, without ``/v1``."""
        return self.client.url

    def chat(self, body: Mapping[str, Any]) -> Answer:
        """One chat completion. Raises HttpError."""
        return self._whole(CHAT, body)

    def complete(self, body: Mapping[str, Any]) -> Answer:
        """One completion. Raises HttpError."""
        return self._whole(COMPLETIONS, body)

    def stream(self, path: str, body: Mapping[str, Any]) -> list[Answer]:
        """The same, streamed: every event, the last of them with the usage. Raises HttpError."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        text = self._counted(lambda: self.client.text(path, self._asked(asked), timeout_s=self.timeout_s))
        found = events(text)
        self._add(next((event.get("usage") for event in reversed(found) if event.get("usage")), None))
        return found

    def abandon(self, path: str, body: Mapping[str, Any], after_s: float) -> bool:
        """Send a request and hang up after ``after_s``; whether it was still running then. Raises BadAnswer."""
        asked = self._asked({**body, "stream": True, "stream_options": {"include_usage": True}})
        try:
            text = self._counted(lambda: self.client.text(path, asked, timeout_s=after_s))
        except Unreachable:
            self.foreign(1, None, None, most_tokens=float(body["max_tokens"]) + _length(body))
            return True
        usages = [event.get("usage") for event in events(text) if event.get("usage")]
        self._add(usages[-1] if usages else None)
        return False

    def many(self, send: Callable[[Any], T], bodies: Sequence[Any], at_once: int) -> list[T]:
        """``send`` every body, ``at_once`` at a time; answers in order. Raises the first HttpError."""
        with ThreadPoolExecutor(max(1, at_once)) as pool:
            return list(pool.map(send, bodies))

    def rows_during(self, send: Callable[[], T]) -> tuple[T, float | None]:
        """What ``send`` gives, and the requests that decoded at a time, in the mean over steps; None where none did.

        Data-parallel engines step apart: what one of them holds counts for each.
        """
        before = drives.read(self.client)
        generated = self._tally.completion_tokens
        answer = send()
        after = drives.settled(self.client, before, self._tally.completion_tokens - generated)
        phase = Phase(1, 0, 0, 1.0, None, None, False, before.pages, after.pages)
        rows = rows_of(phase.steps())
        return answer, None if rows is None else rows * len({page.engine for page in after.pages})

    def foreign(
        self,
        requests: int,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        *,
        most_tokens: float = UNBOUNDED,
    ) -> None:
        """Requests that a client of others sent for us. None: not known, up to ``most_tokens`` for all of them."""
        with self._lock:
            self._tally.requests += requests
            self._tally.prompt_tokens += prompt_tokens or 0
            self._tally.completion_tokens += completion_tokens or 0
            if prompt_tokens is None or completion_tokens is None:
                self._tally.open_requests += requests
                self._tally.open_tokens += most_tokens

    def begin(self) -> Reading:
        """Start an interval; the reading is for ``end``. Raises Unreachable."""
        reading = drives.read(self.client)
        deadline = time.monotonic() + drives.SETTLE_S
        while reading.busy and time.monotonic() < deadline:
            time.sleep(drives.POLL_S)
            reading = drives.read(self.client)
        self._tally = Tally()
        return reading

    def end(self, before: Reading, seconds: float) -> Seen:
        """What was seen since ``begin``. Raises Unreachable."""
        tally = self._tally
        after = drives.settled(self.client, before, tally.completion_tokens)
        phase = Phase(
            rows=tally.requests,
            generated=tally.completion_tokens,
            prompted=tally.prompt_tokens,
            seconds=seconds,
            served_generated=drives.difference(before.generated, after.generated),
            served_prompted=drives.difference(before.prompted, after.prompted),
            busy_before=before.busy,
            before=before.pages,
            after=after.pages,
        )
        return Seen(phase, tally.peak, tally.open_requests, tally.open_tokens)

    def _whole(self, path: str, body: Mapping[str, Any]) -> Answer:
        answer = self._counted(lambda: self.client.json(path, self._asked(body), timeout_s=self.timeout_s))
        if (
            not isinstance(answer, dict)
            or not isinstance(answer.get("choices"), list)
            or not answer["choices"]
        ):
            raise BadAnswer(f"`{self.url}{path}` answered without a choice")
        self._add(answer.get("usage"))
        return answer

    def _asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.facts.model, **body}

    def _counted(self, send: Callable[[], T]) -> T:
        with self._lock:
            self._tally.running += 1
            self._tally.peak = max(self._tally.peak, self._tally.running)
        try:
            return send()
        finally:
            with self._lock:
                self._tally.running -= 1

    def _add(self, usage: Any) -> None:
        """Count a request's tokens; an answer that does not tell them makes the interval's an open one."""
        counted = usage if isinstance(usage, Mapping) else {}
        prompted, generated = counted.get("prompt_tokens"), counted.get("completion_tokens")
        known = type(prompted) is int and type(generated) is int
        self.foreign(1, prompted if known else None, generated if known else None)


def events(text: str) -> list[Answer]:
    """The JSON objects of a stream of server-sent events. Raises BadAnswer for one that is none."""
    found: list[Answer] = []
    for line in text.splitlines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if not data or data == "[DONE]":
            continue
        try:
            event = json.loads(data)
        except ValueError:
            raise BadAnswer(f"a streamed event is not JSON: `{data[:60]}`") from None
        if not isinstance(event, dict):
            raise BadAnswer(f"a streamed event is no object: `{data[:60]}`")
        found.append(event)
    return found


def said(error: BadAnswer) -> str:
    """The server's own words in an error, without the JSON around them, which may have been cut off."""
    found = re.search(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)', error.message)
    return found[1].replace('\\"', '"') if found else error.message[:200]


def _length(body: Mapping[str, Any]) -> float:
    """Most tokens of a prompt: a token has a byte at least."""
    prompt = body.get("prompt", body.get("messages", ""))
    return (
        float(len(prompt))
        if isinstance(prompt, list) and "messages" not in body
        else float(len(str(prompt))) + 1024
    )
