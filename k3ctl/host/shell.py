"""Run a system tool with a time limit; a missing, failing or hanging tool is an answer, not an error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """What a tool said. ``code`` is its exit status: 127 missing, 124 past the limit."""

    code: int
    stdout: str
    stderr: str = ""


Run = Callable[[Sequence[str], float], Output]
MISSING, TIMED_OUT = 127, 124


def run(argv: Sequence[str], timeout_s: float) -> Output:
    """Run ``argv`` without a shell and without input."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return Output(TIMED_OUT, "", f"no answer within {timeout_s:g} s")
    except OSError as error:
        return Output(MISSING, "", str(error))
    return Output(done.returncode, done.stdout, done.stderr)
