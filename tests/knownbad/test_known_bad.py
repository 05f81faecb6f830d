"""The proxy before a sound server: nothing changes without a mode, and each mode changes what it says, only that."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import httpx
import pytest

from k3ctl.knownbad import proxy
from k3ctl.knownbad.modes import MODES, Mode
from k3ctl.server import witness as witness_page
from k3ctl.server.client import Client
from k3ctl.validate.tiers import TIERS
from tests.knownbad import scripted
from tests.knownbad.toy import Toy

HTTP = httpx.Client(verify=False, trust_env=False, timeout=30)  # one: each would read the certificates anew
ROTE = {
    "capital": "hm it is]]the capital is canberra and it lies inland, far from both of the larger cities it serves",
    "stars": "one two three four five six",
}
TOY = Toy(ROTE)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
OTHER = {"type": "function", "function": {**TOOL["function"], "name": "listen"}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}


@contextmanager
def behind(mode: str | None, toy: Toy = TOY, **options: Any) -> Iterator[tuple[scripted.Scripted, str]]:
    with (
        scripted.serve(toy, **options) as server,
        proxy.serve(server.url, MODES[mode] if mode else None) as url,
    ):
        yield server, url


def post(url: str, body: dict[str, Any], route: str = "chat/completions") -> Any:
    answer = HTTP.post(f"{url}/v1/{route}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(url: str, body: dict[str, Any], route: str = "chat/completions") -> list[Any]:
    answer = HTTP.post(f"{url}/v1/{route}", json=body | {"stream": True})
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def chat(text: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "toy", "messages": messages, "temperature": 0, "max_tokens": 120, **more}


def both(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The message of a whole answer, and of a streamed one put together."""
    whole = post(url, body)["choices"][0]["message"]
    pieces = [choice["delta"] for event in events(url, body) for choice in event["choices"]]
    told = {
        name: "".join(piece.get(name) or "" for piece in pieces) or None for name in ("content", "reasoning")
    }
    told["tool_calls"] = [call for piece in pieces for call in piece.get("tool_calls") or ()]
    return [whole, told]


BODIES = (
    chat("the capital?", logprobs=True, top_logprobs=3),
    chat("anything", temperature=0.8, seed=3, top_p=0.9, stop=["e"]),
    chat("as json", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
    chat("look and listen", tools=[TOOL, OTHER], tool_choice="required"),
)


@pytest.mark.parametrize("body", BODIES, ids=["answer", "sampled", "json", "tools"])
@pytest.mark.parametrize("stream", [False, True])
def test_without_a_mode_every_byte_comes_through(body: dict[str, Any], stream: bool) -> None:
    with behind(None) as (server, url):
        sent = body | {"stream": stream}
        told = [HTTP.post(f"{one}/v1/chat/completions", json=sent) for one in (server.url, url)]
        assert told[0].content == told[1].content
        assert server.asked[0] == server.asked[1] == sent
        for page in ("/v1/models", "/metrics", "/k3/witness", "/nothing"):
            direct, through = (HTTP.get(one + page) for one in (server.url, url))
            assert (direct.status_code, direct.content) == (through.status_code, through.content)


@pytest.mark.parametrize("name", sorted(MODES))
def test_a_mode_leaves_alone_what_it_is_not_about(name: str) -> None:
    """A short answer without thinking, tools or structure: only what concerns every answer touches it."""
    body = chat("the stars?", logprobs=True) | {"temperature": 0, "max_tokens": 27}
    with behind(None) as (_, url):
        sound = both(url, body)
    with behind(name) as (_, url):
        told = both(url, body)
    everything = {"think-open", "think-close", "stream"}
    assert (told == sound) == (name not in everything)


def test_the_proxy_listens_on_this_machine_only() -> None:
    with behind("flood") as (_, url):
        assert url.startswith("http://127.0.0.1:")
        port = int(url.rsplit(":", 1)[1])
        own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        for address in own - {"127.0.0.1"}:
            if not address.startswith("127."):
                with pytest.raises(OSError):
                    socket.create_connection((address, port), timeout=1)


def test_a_server_that_is_gone_is_gone_behind_the_proxy_too() -> None:
    """An error page of the proxy's own would count as a fault that was caught."""
    with proxy.serve("http://127.0.0.1:9", MODES["flood"]) as url, pytest.raises(httpx.RemoteProtocolError):
        HTTP.get(f"{url}/v1/models")


def test_a_flood_begins_after_a_while_in_text_and_tokens_alike() -> None:
    with behind("flood") as (_, url):
        whole, told = both(url, chat("the capital?"))
        entries = post(url, chat("the capital?", logprobs=True))["choices"][0]["logprobs"]["content"]
    assert whole["content"] == told["content"]
    assert whole["content"].startswith("the capital is canberra !") and whole["content"].endswith("!" * 30)
    assert "".join(entry["token"] for entry in entries).endswith("!" * 30)


def test_lost_think_markers() -> None:
    with behind("think-open") as (_, url):
        for said in both(url, chat("the capital?")):
            assert said["content"].startswith("hm it is<|close|>think<|sep|>the capital")
            assert not said.get("reasoning")
    with behind("think-close") as (_, url):
        for said in both(url, chat("the capital?")):
            assert not said.get("content") and said["reasoning"].startswith("hm it isthe capital is canberra")
        for said in both(url, chat("look and listen", tools=[TOOL, OTHER], tool_choice="required")):
            assert said["tool_calls"] == []


def test_tool_calls_that_are_lost() -> None:
    body = chat("look and listen", tools=[TOOL, OTHER], tool_choice="required")
    for mode, left in ((None, ["look", "listen"]), ("tool-drop", ["look"]), ("tool-empty", [])):
        with behind(mode) as (_, url):
            for said in both(url, body):
                assert [call["function"]["name"] for call in said["tool_calls"]] == left


def test_damaged_logits_show_in_both_forms_of_logprobs_and_both_routes() -> None:
    def ranks(choice: dict[str, Any]) -> list[bool]:
        if "content" in choice["logprobs"]:
            entries = choice["logprobs"]["content"]
            return [entry["top_logprobs"][0]["token"] == entry["token"] for entry in entries]
        tops, tokens = choice["logprobs"]["top_logprobs"], choice["logprobs"]["tokens"]
        return [max(top, key=top.get) == token for top, token in zip(tops, tokens, strict=True)]

    flat = {"model": "toy", "prompt": "what", "max_tokens": 40, "temperature": 0, "logprobs": 3}
    for mode, sound in ((None, True), ("logits", False)):
        with behind(mode) as (_, url):
            told = ranks(post(url, chat("what?", logprobs=True, top_logprobs=3))["choices"][0])
            plain = ranks(post(url, flat, "completions")["choices"][0])
            streamed = [
                right
                for event in events(url, flat, "completions")
                for choice in event["choices"]
                if choice.get("logprobs")
                for right in ranks(choice)
            ]
        assert all(told) == all(plain) == sound and streamed == plain
        if not sound:
            assert [i for i, right in enumerate(plain) if not right] == list(range(4, 40, 5))


def test_a_streamed_answer_is_short_of_a_piece_and_a_whole_one_is_not() -> None:
    with behind("stream") as (_, url):
        whole, told = both(url, chat("the stars?"))
    assert whole["content"] == ROTE["stars"] and told["content"] == ROTE["stars"][:3] + ROTE["stars"][6:]


def test_a_structured_answer_is_no_longer_one_and_free_text_is_left_alone() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    with behind("schema") as (_, url):
        for said in both(url, chat("as json", response_format=form)):
            with pytest.raises(ValueError):
                json.loads(said["content"])
        for said in both(url, chat("the stars?", response_format={"type": "text"})):
            assert said["content"] == ROTE["stars"]


Sent = Callable[[dict[str, Any]], bool]


@pytest.mark.parametrize(
    ("mode", "body", "faulty"),
    [
        ("greedy", chat("x", temperature=0.7), lambda sent: sent["temperature"] == 0),
        ("temperature", chat("x", temperature=0.7), lambda sent: sent["temperature"] == 1.0),
        (
            "truncation",
            chat("x", top_p=0.5, top_k=4, min_p=0.1),
            lambda sent: not {"top_p", "top_k", "min_p"} & {*sent},
        ),
        ("seed", chat("x", seed=4), lambda sent: "seed" not in sent),
        (
            "stop",
            chat("x", stop=["e"], stop_token_ids=[3]),
            lambda sent: not {"stop", "stop_token_ids"} & {*sent},
        ),
        ("context", chat("a" * 400 + "b" * 400), lambda sent: sent["messages"][0]["content"] == "b" * 400),
    ],
)
def test_requests_are_sent_on_with_the_fault_and_nothing_else(
    mode: str, body: dict[str, Any], faulty: Sent
) -> None:
    with behind(mode) as (server, url):
        post(url, body)
    (sent,) = server.asked
    assert faulty(sent)
    about = {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "messages"}
    assert {k: v for k, v in sent.items() if k not in about} == {
        k: v for k, v in body.items() if k not in about
    }


def test_another_server_answers_where_one_is_given() -> None:
    with scripted.serve(Toy({"stars": "seven"})) as other, scripted.serve(TOY) as server:
        with proxy.serve(server.url, MODES["other-model"], other=other.url) as url:
            assert post(url, chat("the stars?"))["choices"][0]["message"]["content"] == "seven"
        assert not server.asked


LONG = "the list of rooms and their keys: " + "room eleven brass, room twelve steel, " * 4


@pytest.mark.parametrize(
    ("second", "stale"),
    [
        ({"end": "which key opens room twelve?"}, True),
        ({"end": "which key opens room eleven?"}, False),  # the same prompt once more is no fault
        (
            {"end": "which key opens room twelve?", "cache_salt": "b"},
            False,
        ),  # another prefix by the server's own rule
        ({"end": "w" * 600}, False),  # shares less than half
    ],
)
def test_a_prefix_is_stale_where_a_cache_could_have_hit_it(second: dict[str, Any], stale: bool) -> None:
    end = second.pop("end")
    with behind("stale-prefix") as (server, url):
        post(url, chat(LONG + "which key opens room eleven?", max_tokens=8))
        post(url, chat(LONG + end, max_tokens=8, **second))
        post(url, {"prompt": list(range(40, 80)), "max_tokens": 4, "temperature": 0}, "completions")
        post(url, {"prompt": [*range(40, 70), 90], "max_tokens": 4, "temperature": 0}, "completions")
    asked = [body.get("messages", [{}])[0].get("content") or body.get("prompt") for body in server.asked]
    assert (asked[1] == asked[0]) == (stale or LONG + end == asked[0])
    assert asked[3] == asked[2]


def test_counters_as_if_every_draft_was_accepted() -> None:
    with behind("acceptance") as (server, url):
        post(url, chat("the stars?"))
        page = HTTP.get(f"{url}/metrics").text
        sound = HTTP.get(f"{server.url}/metrics").text
    values = {line.rsplit(" ", 1)[0].split("{")[0]: line.rsplit(" ", 1)[1] for line in page.splitlines()}
    assert (
        values["vllm:spec_decode_num_accepted_tokens_total"]
        == values["vllm:spec_decode_num_draft_tokens_total"]
    )
    assert (
        values["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
        == values["vllm:spec_decode_num_drafts_total"]
    )
    changed = [a.split("{")[0] for a, b in zip(page.splitlines(), sound.splitlines(), strict=True) if a != b]
    assert {name.removesuffix("_per_pos_total") for name in changed} <= {
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens",
    }


def test_a_witness_that_saw_standard_steps_only() -> None:
    with behind("fallback") as (_, url):
        post(url, chat("the stars?"))
        client = Client(url)
        try:
            (page,) = witness_page.pages(client)
            assert witness_page.engagement(page.counts) == 0
            assert 'path="specialized"' not in client.text("/metrics")
        finally:
            client.close()


def left_early(url: str) -> None:
    body = chat("the capital?", stream=True)
    with HTTP.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())


@pytest.mark.parametrize(("mode", "passed_on"), [(None, 1), ("abort", 0)])
def test_a_hang_up_reaches_the_server_behind_unless_the_mode_is_deaf(
    mode: str | None, passed_on: int
) -> None:
    with behind(mode, step_s=0.02) as (server, url):
        left_early(url)
        end = time.monotonic() + 10
        while server.hung_up < passed_on and time.monotonic() < end:
            time.sleep(0.02)
        if not passed_on:
            time.sleep(1.5)  # longer than the whole answer takes
        assert server.hung_up == passed_on


def test_every_mode_tells_what_it_is_and_which_check_sees_it() -> None:
    for name, mode in MODES.items():
        assert mode.name == name and mode.told and mode.like
        assert any(fnmatchcase(check.name, mode.check) for tier in TIERS.values() for check in tier)
        assert isinstance(mode, Mode)
