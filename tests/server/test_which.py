"""One meaning of --url, --run and neither, for every command."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from k3ctl.commands import verify as verify_command
from k3ctl.commands.bench import parts
from k3ctl.engine import procs, rundir
from k3ctl.errors import EngineError, UsageError
from k3ctl.server import which
from k3ctl.verdict import check

Make = Callable[..., rundir.Run]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Runs that this very process owns, so that they are alive."""
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))

    def one(
        name: str, port: int = 8000, *, state: str = "ready", at: float = 1.0, alive: bool = True
    ) -> rundir.Run:
        run = rundir.Run(
            id=name,
            profile="cpu-tiny",
            host="127.0.0.1",
            port=port,
            url=f"http://127.0.0.1:{port}",
            served_model_name="k3-tiny",
            tokenizer="t",
            argv=(),
            env={},
            started_at=at,
            state=state,
            pid=os.getpid() if alive else 0,
            pid_started=procs.started_at(os.getpid()) or 0,
            boot_id=procs.boot_id(),
        )
        return rundir.create(run)

    return one


def test_neither_is_the_newest_that_is_ready(make: Make) -> None:
    make("old", 1, at=1.0)
    make("new", 2, at=2.0)
    make("starts", 3, at=3.0, state="starting")
    found = which.one()
    assert (found.url, found.run and found.run.id) == ("http://127.0.0.1:2", "new")


def test_a_url_finds_the_live_run_behind_it_in_any_spelling(make: Make) -> None:
    make("mine", 8000)
    for text in (
        "http://127.0.0.1:8000",
        "localhost:8000",
        "http://localhost:8000/v1/",
        "http://[::1]:8000/metrics",
    ):
        found = which.one(text)
        assert found.run is not None, text
        assert found.run.id == "mine"


def test_a_run_that_has_ended_says_nothing_about_the_server_that_listens_there_now(make: Make) -> None:
    make("gone", 8000, state="stopped", alive=False)
    assert which.one("http://127.0.0.1:8000").run is None
    with pytest.raises(EngineError, match="is stopped"):
        which.one(run="gone")


def test_both_names_and_no_server_are_usage_errors(make: Make) -> None:
    with pytest.raises(UsageError, match="two servers"):
        which.one("http://127.0.0.1:1", "x")
    with pytest.raises(UsageError, match="no server"):
        which.one()
    with pytest.raises(UsageError, match="no run"):
        which.one(run="missing")


def test_every_command_means_the_same_server(make: Make) -> None:
    make("old", 1, at=1.0)
    make("new", 2, at=2.0)
    for url, run in ((None, None), (None, "old"), ("http://127.0.0.1:2/v1", None)):
        expected = which.one(url, run)
        assert check.target(url, run).url == expected.url
        record, target = parts.target(run, url, None, None)
        assert (record, target.url) == (expected.run, expected.url)


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://x", "http://h:99999", "http://a b:1", "http://h:eight"]
)
def test_what_is_no_address_is_a_usage_error_everywhere(text: str, make: Make) -> None:
    with pytest.raises(UsageError, match="server address"):
        which.base_url(text)
    if text:
        with pytest.raises(UsageError):
            verify_command.verify(url=text)
        with pytest.raises(UsageError):
            rundir.find(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("http://host:8000/metrics", "http://host:8000"),
        ("https://host/v1", "https://host"),
        ("https://gw/k3/metrics", "https://gw/k3"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://user:word@host:8000", "http://host:8000"),
    ],
)
def test_any_address_of_the_server_names_its_base(text: str, expected: str) -> None:
    assert which.base_url(text) == expected


def test_a_command_that_changes_something_wants_to_be_told_which(make: Make) -> None:
    with pytest.raises(UsageError, match="no engine"):
        which.only()
    first = make("one", 1)
    assert which.only() == dataclasses.replace(first)
    make("two", 2)
    with pytest.raises(UsageError, match="2 engines"):
        which.only()
