"""Exit codes and the error tree.

Everything a user can cause ends in a ``K3Error``: what happened, to what, and a hint on what to do.
``cli.main`` maps it to one exit code, once.

    K3Error            1  the command ran and the answer is no
    ├── UsageError     2  an unknown name, a bad value, a bad file
    ├── MachineError   3  this machine cannot do it (driver, GPU, memory, version, missing package)
    └── EngineError    4  the engine failed, or is not there any more
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit statuses of every k3ctl command."""

    OK = 0
    """The command did what it says."""
    FAILED = 1
    """It ran, and a check is red or a requirement was not met."""
    USAGE = 2
    """Unknown option, name, key or value."""
    MACHINE = 3
    """This machine cannot: driver, GPU, memory, version, missing package."""
    ENGINE = 4
    """The engine failed to start, failed while running, or went away."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C."""


class K3Error(Exception):
    """A failure with an explanation a person can act on."""

    exit_code: ExitCode = ExitCode.FAILED
    code: str = "failed"

    def __init__(self, message: str, *, hint: str | None = None, reasons: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.reasons = tuple(reasons)


class UsageError(K3Error):
    """The command, a name, a key or a value is wrong."""

    exit_code = ExitCode.USAGE
    code = "usage"


class MachineError(K3Error):
    """The machine cannot do what was asked."""

    exit_code = ExitCode.MACHINE
    code = "machine"


class EngineError(K3Error):
    """The engine failed or went away."""

    exit_code = ExitCode.ENGINE
    code = "engine"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``word``, or None when nothing is close."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(kind: str, word: str, known: Iterable[str]) -> UsageError:
    """A UsageError for an unknown name, with the nearest known one as hint."""
    names = sorted(known)
    close = nearest(word, names)
    hint = f"did you mean `{close}`?" if close else f"known: {', '.join(names)}" if names else None
    return UsageError(f"unknown {kind} `{word}`", hint=hint)
