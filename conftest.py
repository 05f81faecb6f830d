"""How the tests are shared out over processes (``pytest -n 2 --dist loadgroup``), and how they start."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SERVERS = "tests/e2e"
"""One real server serves this whole folder, so one process runs it."""
LONGEST_FIRST = (SERVERS, "tests/engine_cpu", "tests/engine", "tests/loadtest", "tests/tui")


def pytest_configure() -> None:
    """A shell gives its background jobs an ignored Ctrl-C, and children inherit that: ours must not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def group(path: Path) -> str:
    """Tests of one group run in one process, in order: module fixtures are built once."""
    name = path.relative_to(ROOT).as_posix()
    return SERVERS if name.startswith(SERVERS) else name


def rank(path: Path) -> int:
    """What takes longest starts first, so that no process is left with it at the end."""
    name = path.relative_to(ROOT).as_posix()
    return next(
        (i for i, folder in enumerate(LONGEST_FIRST) if name.startswith(folder + "/")), len(LONGEST_FIRST)
    )


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group and order the tests where they are shared out; a plain run keeps its order."""
    if not hasattr(config, "workerinput"):
        return
    items.sort(key=lambda item: rank(item.path))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item.path)))
