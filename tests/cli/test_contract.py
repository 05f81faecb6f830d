"""What every command keeps: the JSON envelope, exit codes, one-line errors, a light start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.in_process import k3ctl

Run = Callable[..., subprocess.CompletedProcess[str]]
ENVELOPE = {"envelope", "k3ctl", "schema", "exit_code", "data", "warnings", "error"}
HEAVY = ("pydantic", "yaml", "rich.console", "httpx", "textual", "pynvml", "prometheus_client")


def as_a_process(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "k3ctl", *args], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("run", [k3ctl, as_a_process])
def test_a_result_is_one_object_with_exactly_the_envelopes_keys(run: Run) -> None:
    done = run("profiles", "list", "--json")
    value = json.loads(done.stdout)
    assert set(value) == ENVELOPE
    assert (done.returncode, value["exit_code"], value["error"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("args", "code", "hint"),
    [
        (("profiles", "show", "cpu-tinny"), 2, "cpu-tiny"),
        (("serve", "--profile", "gb300-tp61"), 2, "gb300-tp16"),
        (("serve", "--profile", "cpu-tiny", "--set", "max_num_sqs=3"), 2, "max_num_seqs"),
        (("verify", "--url", "http://127.0.0.1:9"), 4, ""),
        (("bench", "smoke", "--url", "http://127.0.0.1:9", "--model", "m", "--tokenizer", "t"), 4, ""),
        (("verify", "--rows", "x"), 2, ""),
        (("no-such-command",), 2, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_error_is_one_line_with_its_exit_code_and_the_envelope_says_the_same(
    args: tuple[str, ...], code: int, hint: str
) -> None:
    plain = k3ctl(*args)
    assert plain.returncode == code
    assert plain.stdout == ""
    assert "error: " in plain.stderr
    assert "Traceback" not in plain.stderr
    assert hint in plain.stderr
    wrapped = k3ctl(*args, "--json")
    value = json.loads(wrapped.stdout)
    assert set(value) == ENVELOPE
    assert wrapped.returncode == value["exit_code"] == code
    assert value["error"]["message"]


@pytest.mark.parametrize("args", [("profiles", "show", "cpu-tinny"), ("plan", "--render", "x", "--json")])
def test_a_process_ends_with_the_code_and_says_the_same(args: tuple[str, ...]) -> None:
    done, told = as_a_process(*args), k3ctl(*args)
    assert told.returncode == 2
    assert (done.returncode, done.stdout, done.stderr) == (told.returncode, told.stdout, told.stderr)


@pytest.mark.parametrize("args", ["profiles list", "profiles list --json", "doctor --profile gb300-tp16"])
def test_a_reader_that_goes_away_changes_no_exit_code_and_causes_no_message(args: str) -> None:
    expected = k3ctl(*args.split()).returncode
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "k3ctl", *args.split()], stdout=write_end, stderr=subprocess.PIPE, text=True,
        timeout=60,
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (expected, "")


def test_the_help_is_reached_without_the_heavy_imports() -> None:
    code = (
        "import sys, k3ctl.cli as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "command",
    [
        "doctor",
        "plan",
        "profiles list",
        "serve",
        "verify",
        "bench",
        "monitor",
        "triage",
        "ps",
        "stop",
        "gate",
        "demo",
    ],
)
def test_every_command_has_json_and_help(command: str) -> None:
    done = k3ctl(*command.split(), "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
