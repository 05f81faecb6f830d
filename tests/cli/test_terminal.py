"""Nothing from a log, a server or another host is obeyed by the terminal that shows it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3ctl import output
from k3ctl.errors import K3Error, UsageError
from k3ctl.output import CommandResult, Lines, Table

ATTACKS = {
    "title": "\x1b]0;owned\x07", "clipboard": "\x1b]52;c;cm0gLXJm\x1b\\", "clear": "\x1b[2J\x1b[H", "8-bit": "\x9b2J",
    "return": "fine\rFAKE", "backspace": "no\b\bok", "bell": "\x07", "del": "\x7f", "string": "\x90q\x9c", "nul": "\0",
    "right to left": "a\u202egpj.exe", "isolate": "\u2066x\u2069", "separator": "a\u2028b", "surrogate": "\udcff\ud800",
    "hyperlink": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\", "next line": "a\x85b", "form feed": "a\x0cb",
}  # fmt: skip
OBEYED = [chr(code) for code in (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))]
OBEYED += list(
    "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\udcff\ud800"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def terminal(
    monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO]
) -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = kind(), kind()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    yield out, err


def own(text: str) -> str:
    """Without what the printer itself says to a terminal: colours of tables, \"clear to the end of the line\"."""
    return output._COLOUR.sub("", text).replace("\x1b[K", "")


@pytest.mark.parametrize("kind", [Terminal, io.StringIO], ids=["terminal", "pipe"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_text_that_a_command_prints_is_obeyed(
    attack: str, kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(["a", "b"], [[attack, f"x{attack}y"]], title=attack)
    result = CommandResult("x/1", {attack: [attack]}, [Lines([attack]), table], warnings=[attack])
    with terminal(monkeypatch, kind) as (out, err):
        output.emit(result, as_json=False)
        output.emit(CommandResult("x/1", {}, [Lines([attack])]), as_json=False)
        output.emit_error(K3Error(attack, hint=attack, reasons=[attack]), as_json=False)
        output.note(attack)
        output.write_text(attack)
    for stream in (out, err):
        left = [repr(char) for char in OBEYED if char in own(stream.getvalue())]
        assert left == []
        stream.getvalue().encode()


@pytest.mark.parametrize("text", ["[link=http://evil]x[/link]", "[/x]", "[bold red]x", "a[0]", "\\[b]"])
def test_no_text_is_markup(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with terminal(monkeypatch, Terminal) as (out, _):
        output.emit(CommandResult("x/1", {}, [Lines([text]), Table([text], [[text]], text)]), as_json=False)
    assert own(out.getvalue()).count(text) == 4
    assert "\x1b]" not in out.getvalue()


def test_json_holds_no_number_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = {"a": float("nan"), "b": [float("inf"), {"c": (-float("inf"), 1.5)}]}
    with terminal(monkeypatch, io.StringIO) as (out, _):
        output.emit(CommandResult("x/1", data), as_json=True)
    shown = json.loads(out.getvalue(), parse_constant=refuse)["data"]
    assert shown == {"a": None, "b": [None, {"c": [None, 1.5]}]}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_json_is_not_obeyed_either_and_says_the_same(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, Terminal) as (out, _):
        output.emit(CommandResult("x/1", {"k": attack, attack: 1}), as_json=True)
    assert [repr(char) for char in OBEYED if char in out.getvalue()] == []
    assert json.loads(out.getvalue())["data"] == {"k": attack, attack: 1}


def test_ordinary_text_is_shown_as_it_is() -> None:
    for text in ("µ × – 你好 🚀 é", "a\tb\nc", ""):
        assert output.printable(text) == text
    assert output.printable("\x1b[0;32mINFO\x1b[0m ok") == "INFO ok"
    assert output.printable("a\x1b[2Jb") == "a␛[2Jb"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_argument_that_is_a_key_is_not_repeated(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch, io.StringIO) as (out, err):
        error = UsageError(
            "`--set api_key=planted-1` contradicts",
            hint="--api-key planted-2",
            reasons=["http://x?key=planted-3"],
        )
        output.emit_error(error, as_json=as_json)
    assert "contradicts" in out.getvalue() + err.getvalue()
    assert "planted" not in out.getvalue() + err.getvalue()


def test_an_engine_log_is_shown_without_keys_and_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from k3ctl import cli
    from k3ctl.engine import rundir

    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "planted in the environment")
    run = rundir.create(rundir.Run("r1", "p", "h", 1, "http://h:1", "m", "t", (), {}, 1.0, state="failed"))
    run.engine_log.write_text(
        "non-default args: {'api_key': ['planted-1']}\nkey planted in the environment\n"
        "\x1b]0;owned\x07 GET /x?sig=planted-2\n"
    )
    assert cli.main(["logs", "r1", "-n", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 3
    assert "planted" not in shown
    assert "\x1b" not in shown
    assert cli.main(["logs", "r1", "--json"]) == 0
    assert "planted" not in capsys.readouterr().out
