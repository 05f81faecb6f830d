"""What a shell offers after TAB: names of profiles, presets and runs. A failure offers nothing and says nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable


def profiles(incomplete: str) -> list[str]:
    """Profiles that begin like this."""
    from k3ctl.profiles import loader

    return _beginning(incomplete, loader.names)


def presets(incomplete: str) -> list[str]:
    """Presets that begin like this, and the words that stand for one."""
    from k3ctl.loadtest import workload

    return _beginning(incomplete, lambda: [*workload.names(), "judge", "mlperf"])


def runs(incomplete: str) -> list[str]:
    """Ids of runs that begin like this, newest first."""
    from k3ctl.engine import rundir

    return _beginning(incomplete, lambda: [run.id for run in rundir.all_runs()])


def live_runs(incomplete: str) -> list[str]:
    """Ids of runs that have not ended."""
    from k3ctl.engine import rundir

    return _beginning(incomplete, lambda: [run.id for run in rundir.all_runs() if run.live()])


def ended_runs(incomplete: str) -> list[str]:
    """Ids of runs that have ended."""
    from k3ctl.engine import rundir

    return _beginning(incomplete, lambda: [run.id for run in rundir.all_runs() if not run.live()])


def _beginning(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    with contextlib.suppress(
        Exception
    ):  # a shell shows whatever is said in the middle of the line being typed
        return [name for name in names() if name.startswith(incomplete)]
    return []
