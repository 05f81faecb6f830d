"""HTTP to a served engine: health, canary request, metrics, JSON routes.

Never through a proxy: an ``http_proxy`` in a site profile must not turn a loopback probe into a remote one.
Standard library only, because the supervisor uses it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3ctl.errors import EngineError

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
GENERATED = "vllm:generation_tokens_total"
PROMPTED = "vllm:prompt_tokens_total"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
CACHE_USED = "vllm:kv_cache_usage_perc"
STEPS = "k3_steps_total"


class Unreachable(EngineError):
    """Nothing answered, or not in time."""

    code = "unreachable"


class BadAnswer(EngineError):
    """Something answered, but not what a vLLM server answers."""

    code = "bad-answer"

    def __init__(self, message: str, *, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True)
class Load:
    """What the engine has done and is doing, summed over engines."""

    generated_tokens: float
    prompt_tokens: float
    running: float
    waiting: float
    cache_used: float = 0.0
    """Share of the cache's blocks in use: it moves while a long prompt is read, when no token counter does."""
    steps: float = 0.0
    """Steps that the witness counted; 0 without a witness."""

    @property
    def progress(self) -> tuple[float, ...]:
        """Changes whenever the engine gets anything done."""
        return (self.generated_tokens, self.prompt_tokens, self.cache_used, self.steps)


class Client:
    """One server. ``url`` is its root, without ``/v1``."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 5.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._timeout_s = timeout_s

    def healthy(self) -> bool:
        """Whether ``/health`` says 200: a hint, no proof of life (it says so even with a dead rank)."""
        try:
            self.text("/health")
        except EngineError:
            return False
        return True

    def canary(self, model: str, timeout_s: float) -> None:
        """Generate one token from one token: the cheapest proof that the engine core works.

        Raises:
            Unreachable: no answer in time.
            BadAnswer: an error, or an answer without a choice.
        """
        body = {"model": model, "prompt": [0], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        answer = self.json("/v1/completions", body, timeout_s=timeout_s)
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise BadAnswer("the canary request got an answer without a choice")

    def load(self) -> Load:
        """Work counters from ``/metrics``.

        Raises:
            BadAnswer: the page holds no vLLM series (a login page, another server, no stats).
        """
        series = metrics(self.text("/metrics"))
        if RUNNING not in series:
            raise BadAnswer(
                f"`{self.url}/metrics` holds no vLLM metrics",
                hint="is this a vLLM server? was it started with --disable-log-stats?",
            )
        names = (GENERATED, PROMPTED, RUNNING, WAITING, CACHE_USED, STEPS)
        return Load(*(series.get(name, 0.0) for name in names))

    def json(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        """GET (or POST with a body) a JSON document."""
        text = self.text(path, body, timeout_s=timeout_s)
        try:
            return json.loads(text)
        except ValueError:
            raise BadAnswer(
                f"`{self.url}{path}` did not answer JSON but `{text[:60].strip()}…`",
                hint="is this a vLLM server?",
            ) from None

    def text(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> str:
        """GET (or POST JSON) and return the body as text."""
        request = urllib.request.Request(self.url + path, headers={"Accept": "*/*"})
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._api_key:
            request.add_header("Authorization", f"Bearer {self._api_key}")
        try:
            with _OPENER.open(request, timeout=timeout_s or self._timeout_s) as response:
                return str(response.read().decode(errors="replace"))
        except urllib.error.HTTPError as error:
            detail = error.read(400).decode(errors="replace").strip()
            raise BadAnswer(
                f"`{self.url}{path}` answered {error.code}: {detail}", status=error.code
            ) from None
        except (OSError, ValueError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"`{self.url}{path}` does not answer: {reason}") from None


def metrics(text: str) -> dict[str, float]:
    """Prometheus text summed by series name; labels are dropped, unreadable lines left out."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line[0] in "#<" or ("{" in line) != ("}" in line):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        try:
            value = float(line.rsplit("}", 1)[-1].split()[0] if "}" in line else line.split()[1])
        except (IndexError, ValueError):
            continue
        sums[name] = sums.get(name, 0.0) + value
    return sums
