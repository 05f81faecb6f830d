"""Whether the checks can fail: every known-bad server, and which check saw it.

A sound server goes first, through the same proxy: what fails there says nothing of a fault. A fault is *caught* when
its named check fails; checks that fail with it must be among those that it may break too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from k3ctl.errors import UsageError
from k3ctl.knownbad import proxy
from k3ctl.knownbad.modes import MODES, Mode
from k3ctl.server.client import Client
from k3ctl.validate import runner
from k3ctl.validate.facts import Facts
from k3ctl.validate.record import Check, Outcome, Result
from k3ctl.validate.session import Session

SOUND = "sound"
MAX_ANSWER_BYTES = 256 << 20
"""Prompt log probabilities of a long context are long."""
BAD = frozenset({Outcome.FAILED, Outcome.VOID})


@dataclass(frozen=True)
class Trial:
    """One server, sound (mode None) or known to be bad, and what the checks said of it."""

    mode: Mode | None
    results: tuple[Result, ...]
    sound: Mapping[str, Outcome] = field(default_factory=dict)
    """What the same checks said of the sound server."""

    @property
    def name(self) -> str:
        """The mode's name."""
        return self.mode.name if self.mode else SOUND

    @property
    def named(self) -> tuple[Result, ...]:
        """What the checks said that must see the fault."""
        return tuple(r for r in self.results if self.mode is not None and names(self.mode, r.check))

    @property
    def seen(self) -> tuple[str, ...]:
        """Checks that failed, or were void, and were not so on the sound server."""
        return tuple(r.check for r in self.results if r.outcome in BAD and self.sound.get(r.check) not in BAD)

    @property
    def caught(self) -> bool | None:
        """Whether the named check saw the fault; None when it could see none: red or not able on the sound server."""
        if self.mode is None:
            return None
        wanted = Outcome.VOID if self.mode.void else Outcome.FAILED
        if any(r.outcome is wanted and self.sound.get(r.check) not in BAD for r in self.named):
            return True
        able = [r for r in self.named if self.sound.get(r.check) is Outcome.PASSED]
        return False if any(r.outcome is not Outcome.NOT_RUN for r in able) else None

    @property
    def strays(self) -> tuple[str, ...]:
        """Checks that saw something although the fault is not theirs."""
        if self.mode is None:
            return self.seen
        return tuple(check for check in self.seen if not (names(self.mode, check) or may(self.mode, check)))


def names(mode: Mode, check: str) -> bool:
    """Whether the check must see the fault; of a void mode, every check that rests on decode steps may."""
    return fnmatchcase(check, mode.check)


def may(mode: Mode, check: str) -> bool:
    """Whether the fault may break what the check looks at, too."""
    return any(fnmatchcase(check, pattern) for pattern in mode.also)


def chosen(patterns: Sequence[str]) -> tuple[Mode, ...]:
    """Modes by name or pattern; all without any. Raises UsageError for a pattern that matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in MODES):
            raise UsageError(f"no known-bad server is called `{pattern}`", hint=f"known: {', '.join(MODES)}")
    return tuple(m for m in MODES.values() if not patterns or any(fnmatchcase(m.name, p) for p in patterns))


def run(
    url: str,
    facts: Facts,
    modes: Sequence[Mode],
    checks: Sequence[Check],
    tell: Callable[[str], Any],
    *,
    api_key: str | None = None,
    every: bool = False,
    other: str | None = None,
) -> Iterator[Trial]:
    """The sound server, then every mode. ``every``: all checks on every mode, else its named ones only.

    ``other``: the server that answers for a mode of another one; without it such a mode is not tried.

    Raises:
        EngineError: the server is gone.
    """

    def tried(mode: Mode | None, some: Sequence[Check]) -> tuple[Result, ...]:
        with proxy.serve(url, mode, other=other) as address:
            client = Client(address, api_key=api_key, max_bytes=MAX_ANSWER_BYTES)
            try:
                return tuple(runner.one(Session(client, facts), check) for check in some)
            finally:
                client.close()

    wanted = [check for check in checks if every or any(names(mode, check.name) for mode in modes)]
    tell(f"{SOUND}: {len(wanted)} checks")
    sound = tried(None, wanted)
    yield Trial(None, sound)
    said = {result.check: result.outcome for result in sound}
    for mode in modes:
        if mode.other and other is None:
            tell(f"{mode.name}: not tried, it needs a second server (`--other`)")
            yield Trial(mode, (), said)
            continue
        some = [check for check in wanted if every or names(mode, check.name)]
        tell(
            f"{mode.name}: {', '.join(check.name for check in some) if not every else f'{len(some)} checks'}"
        )
        yield Trial(mode, tried(mode, some), said)
