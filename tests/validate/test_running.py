"""Running checks: each result is kept with its interval, an error is a result, a server that goes ends the run once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import EngineError
from k3ctl.server.client import BadAnswer, Client, Unreachable
from k3ctl.validate import facts, runner, state
from k3ctl.validate.record import Check, Judged, Outcome, not_run, passed
from k3ctl.validate.session import Session, events, said
from k3ctl.validate.state import Plan
from tests.knownbad import scripted

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}


@contextmanager
def session() -> Iterator[tuple[scripted.Scripted, Session]]:
    with scripted.serve() as server:
        client = Client(server.url)
        try:
            yield server, Session(client, facts.gather(client, None))
        finally:
            client.close()


def asks(one: Session) -> Judged:
    one.chat(ASK)
    return passed("fine")


def raises(error: Exception) -> Any:
    def run(one: Session) -> Judged:
        one.chat(ASK)
        raise error

    return run


def test_an_interval_accounts_for_every_request_however_it_was_sent() -> None:
    with session() as (_, one):
        for send in (asks, lambda s: (s.stream("/v1/chat/completions", ASK), passed(""))[1]):
            found = runner.one(one, Check("canary.x", "x", send))
            assert found.outcome is Outcome.PASSED, found.statement
            assert found.interval is not None and found.interval["requests"] == 1


def test_tokens_that_were_not_asked_through_the_session_are_foreign() -> None:
    with session() as (server, one):

        def sneaky(s: Session) -> Judged:
            Client(server.url).json("/v1/chat/completions", {"model": s.facts.model, **ASK})
            return asks(s)

        found = runner.one(one, Check("canary.x", "x", sneaky))
        assert found.outcome is Outcome.UNKNOWN and "other requests" in found.statement
        counted = Check("canary.y", "y", lambda s: (s.foreign(1, None, None, most_tokens=0), asks(s))[1])
        assert runner.one(one, counted).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BadAnswer("500", status=500), Outcome.FAILED),
        (BadAnswer("400", status=400), Outcome.UNKNOWN),
        (Unreachable("late", "late"), Outcome.UNKNOWN),
    ],
)
def test_an_error_of_the_server_is_a_result(error: Exception, outcome: Outcome) -> None:
    with session() as (_, one):
        assert runner.one(one, Check("canary.x", "x", raises(error))).outcome is outcome


def test_what_was_not_run_has_no_interval() -> None:
    with session() as (_, one):
        found = runner.one(one, Check("canary.x", "x", lambda _: not_run("why")))
        assert (found.outcome, found.interval) == (Outcome.NOT_RUN, None)


def test_the_check_under_which_the_server_went_has_failed_and_the_next_ends_the_run(tmp_path: Path) -> None:
    with session() as (server, one):

        def fatal(s: Session) -> Judged:
            asks(s)
            server.shutdown()
            server.server_close()
            s.client.close()
            s.client = Client(server.url)  # no kept connection
            return asks(s)

        checks = (Check("canary.a", "a", asks), Check("canary.b", "b", fatal), Check("canary.c", "c", asks))
        plan = Plan(("canary",), tuple(c.name for c in checks), {}, {}, {"k": {}}, 1.7e9)
        kept = state.begin(tmp_path / "o", plan)
        with pytest.raises(EngineError, match="stopped answering"):
            runner.run(one, checks, kept, lambda _: None, "k")
    found = {r.check: r.outcome for r in state.load(tmp_path / "o")[1]}
    assert found == {"canary.a": Outcome.PASSED, "canary.b": Outcome.FAILED}


def test_finished_checks_are_not_run_again(tmp_path: Path) -> None:
    ran: list[str] = []

    def counting(s: Session) -> Judged:
        ran.append("x")
        return asks(s)

    check = Check("canary.a", "a", counting)
    plan = Plan(("canary",), ("canary.a",), {}, {}, {"k": {}}, 1.7e9)
    with session() as (_, one):
        kept = state.begin(tmp_path / "o", plan)
        runner.run(one, [check], kept, lambda _: None, "k")
        runner.run(one, [check], state.resume(tmp_path / "o", plan), lambda _: None, "k")
        runner.run(one, [check], kept, lambda _: None, "another server")
    assert len(ran) == 2


@pytest.mark.parametrize("text", ["data: {", "data: []", "data: 3"])
def test_a_broken_stream_is_one_clear_error(text: str) -> None:
    with pytest.raises(BadAnswer, match="streamed event"):
        events(text)


def test_the_servers_own_words_are_found_in_an_error() -> None:
    long = '`http://x` answered 400: {"error": {"message": "tool_choice=\\"required\\" requires a parser", "type": "B'
    assert said(BadAnswer(long, status=400)) == 'tool_choice="required" requires a parser'
    assert said(BadAnswer("plain", status=400)) == "plain"
