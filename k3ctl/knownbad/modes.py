"""The faults: what each does to a request, an answer, or a page of counters. Pure but for a mode's own memory.

Each fault is one that servers really have (operator reports, vLLM's issues), told by ``like``. A fault works on a
whole answer and on a streamed one alike: it sees one choice at a time, and remembers what it needs of those before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3ctl.knownbad import answers, pages, requests

Json = dict[str, Any]


Request = Callable[[str, Json, list[requests.Asked]], Json]
Choice = Callable[[Json, Json, Json], Json]
Page = Callable[[str, str], str]


@dataclass(frozen=True)
class Mode:
    """One way to be broken.

    check: the check of ``k3ctl validate`` that must fail; also: those that may fail with it. ``void``: no check fails,
    but no result counts either.
    request: path, body, the prompts of before → the body that is sent on. choice: one choice (whole, or a piece of a
    stream), what was seen of it, the request → the choice that is told. page: path and text of a page of counters.
    deaf: goes on with a request whose client has gone. other: asks another server.
    """

    name: str
    told: str
    like: str
    check: str
    also: frozenset[str] = frozenset()
    request: Request | None = field(default=None, repr=False)
    choice: Choice | None = field(default=None, repr=False)
    page: Page | None = field(default=None, repr=False)
    deaf: bool = False
    other: bool = False
    void: bool = False


def _named(*modes: Mode) -> Mapping[str, Mode]:
    return {mode.name: mode for mode in modes}


# `check` and `also` are names of `k3ctl validate`; a name that ends with * stands for all that begin so
MODES: Mapping[str, Mode] = _named(
    Mode(
        "logits",
        "now and then the token that was taken is told as less probable than its runner-up",
        "rows of logits damaged after the choice, or logprobs of another row",
        "features.logprobs.rescored",
        frozenset({"features.logprobs.told", "features.speculation"}),
        choice=answers.logits,
    ),
    Mode(
        "think-open",
        "thinking and its closing marker stand in the answer",
        "a reasoning parser that missed the opening marker",
        "canary.think-markers",
        frozenset(
            {"canary.json-schema", "features.structured.*", "canary.answers", "features.streaming.chat"}
        ),
        choice=answers.think_open,
    ),
    Mode(
        "think-close",
        "everything counts as thinking: no answer, no tool calls",
        "a lost closing marker (operator report S08)",
        "canary.json-schema",
        frozenset(
            {
                "canary.think-markers",
                "canary.tool-call",
                "features.structured.*",
                "features.tools.parallel",
                "canary.answers",
                "features.streaming.chat",
                "features.needle.*",
            }
        ),
        choice=answers.think_close,
    ),
    Mode(
        "stale-prefix",
        "a prompt that begins like an earlier one gets that one's answer",
        "a prefix cache that hits what it should not (S06)",
        "canary.repeat-prefix",
        frozenset({"features.prefix-cache"}),
        request=requests.stale,
    ),
    Mode(
        "flood",
        "one token over and over after a few words",
        "NaN logits (S07, S18)",
        "canary.floods",
        frozenset(
            {"canary.answers", "canary.json-schema", "features.structured.json-schema", "features.needle.*"}
        ),
        choice=answers.flood,
    ),
    Mode(
        "greedy",
        "the most probable token, whatever temperature was asked",
        "a sampler that is never reached",
        "canary.sampling",
        frozenset({"features.sampling.*", "features.seeds"}),
        request=requests.greedy,
    ),
    Mode(
        "temperature",
        "temperature 1, whatever was asked",
        "sampling parameters that are lost on the way to the sampler",
        "features.sampling.temperature",
        frozenset({"features.sampling.*"}),
        request=requests.temperature,
    ),
    Mode(
        "truncation",
        "top-p, top-k and min-p are ignored",
        "a fast sampler without its filters",
        "features.sampling.top-p",
        frozenset({"features.sampling.*"}),
        request=requests.truncation,
    ),
    Mode(
        "seed",
        "seeds are ignored",
        "one generator for all requests of a batch",
        "features.seeds",
        request=requests.seed,
    ),
    Mode(
        "stop",
        "stop strings and stop tokens are ignored",
        "stops that are looked for in the last token only, or not at all",
        "features.stop-strings",
        request=requests.stop,
    ),
    Mode(
        "stream",
        "a piece of every streamed answer is lost",
        "a parser that swallows what it holds back",
        "features.streaming.*",
        choice=answers.unequal_stream,
    ),
    Mode(
        "schema",
        "something follows the end of every structured answer",
        "a grammar that is not asked for the last tokens of a step",
        "canary.json-schema",
        frozenset({"features.structured.*"}),
        choice=answers.overrun,
    ),
    Mode(
        "tool-drop",
        "of several tool calls only the first comes through",
        "a parser that ends with the first call",
        "features.tools.parallel",
        choice=answers.drop_tool,
    ),
    Mode(
        "tool-empty",
        "the turn ends as if tools were called, but there are none",
        "empty tool calls (S08)",
        "canary.tool-call",
        frozenset({"features.tools.parallel"}),
        choice=answers.no_tool,
    ),
    Mode(
        "context",
        "the first half of a long prompt is never read",
        "a window or a shard of the context that is lost (S18)",
        "features.context.*",
        frozenset({"features.needle.*"}),
        request=requests.context,
    ),
    Mode(
        "other-model",
        "another server answers (`--other`)",
        "a router that sends to another deployment, a wrong adapter or checkpoint",
        "canary.answered-here",
        frozenset({"canary.answers"}),
        other=True,
    ),
    Mode(
        "abort",
        "generation goes on when the client has gone",
        "a gateway that does not pass a hang-up on",
        "features.abort",
        deaf=True,
    ),
    Mode(
        "acceptance",
        "the counters say that every draft was accepted",
        "synthetic acceptance, or drafts compared with themselves",
        "canary.acceptance",
        page=pages.all_accepted,
    ),
    Mode(
        "fallback",
        "the witness counts standard steps only",
        "a path that silently fell back",
        "canary.floods",
        frozenset({"canary.*", "features.*"}),
        page=pages.standard,
        void=True,
    ),
)
