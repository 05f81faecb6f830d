"""Sends the canary's prompts to a server: the only I/O of this package."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from k3ctl.canary.judge import Health, Judged, Reply, health, judge
from k3ctl.canary.prompts import PROMPTS, Prompt
from k3ctl.errors import K3Error
from k3ctl.server import models, which, witness
from k3ctl.server.client import BadAnswer, Client, HttpError

MAX_TOKENS = 512
RANDOM_TOKENS = 48
"""For the tiny CPU model, whose random weights never end an answer."""
TIMEOUT_S = 120.0
AT_ONCE = 4


@dataclass(frozen=True)
class Report:
    """All answers with the verdict; ``content``: whether right answers could be expected."""

    results: tuple[Judged, ...]
    verdict: Health
    statement: str
    content: bool
    model: str


def run(
    client: Client,
    model: str,
    *,
    content: bool | None = None,
    prompts: Sequence[Prompt] = PROMPTS,
    max_tokens: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Report:
    """Send every prompt, judge every answer.

    ``content``: judge the answers too; None does so except for the random weights of the tiny CPU model. Never raises
    for an answer: what a server refuses or breaks off is its result.
    """
    random_weights = _random_weights(client)
    judged_content = not random_weights if content is None else content
    most = max_tokens or (RANDOM_TOKENS if random_weights else MAX_TOKENS)

    def one(prompt: Prompt) -> Judged:
        reply = ask(client, model, prompt.text, most, timeout_s)
        return judge(prompt, reply, content=judged_content, random_weights=random_weights)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = tuple(pool.map(one, prompts))
    verdict, statement = health(results, content=judged_content)
    return Report(results, verdict, statement, judged_content, model)


def to(url: str) -> tuple[str, str]:
    """Verdict and sentence for the server at ``url``, for a screen: what goes wrong is the sentence."""
    client = Client(url, api_key=which.api_key(os.environ))
    try:
        report = run(client, models.served(client))
    except K3Error as error:
        return Health.UNKNOWN.value, error.message
    finally:
        client.close()
    return report.verdict.value, report.statement


def ask(client: Client, model: str, text: str, max_tokens: int, timeout_s: float) -> Reply:
    """One chat request at temperature 0, with the tokens told where the server tells them."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": True,
    }
    started = time.monotonic()
    try:
        answer = _post(client, body, timeout_s)
    except HttpError as error:
        return Reply(error=error.message, seconds=time.monotonic() - started)
    return reply(answer, time.monotonic() - started)


def _post(client: Client, body: Mapping[str, Any], timeout_s: float) -> Any:
    try:
        return client.json("/v1/chat/completions", dict(body), timeout_s=timeout_s)
    except BadAnswer as error:
        if error.status not in {400, 422}:
            raise
        plain = {key: value for key, value in body.items() if key != "logprobs"}
        return client.json("/v1/chat/completions", plain, timeout_s=timeout_s)


def reply(answer: Any, seconds: float) -> Reply:
    """The answer of ``/v1/chat/completions`` as a ``Reply``; a shape that is not that gives an error."""
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        logprobs = (choice.get("logprobs") or {}).get("content") or ()
        usage = answer.get("usage") or {}
        return Reply(
            text=str(message.get("content") or ""),
            reasoning=str(message.get("reasoning") or message.get("reasoning_content") or ""),
            tokens=tuple(str(entry["token"]) for entry in logprobs),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            finish_reason=str(choice.get("finish_reason") or ""),
            seconds=seconds,
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Reply(
            error=f"the answer is no chat completion ({type(error).__name__}: {error})", seconds=seconds
        )


def _random_weights(client: Client) -> bool:
    """The tiny CPU model has seeded random weights; its witness names the platform."""
    try:
        return any(page.platform == "cpu" for page in witness.pages(client))
    except HttpError:
        return False
