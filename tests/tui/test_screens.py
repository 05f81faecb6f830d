"""Every screen in every situation: the words it must say, and a picture of it.

The words are asserted apart from the pictures, so that a change of colours or layout breaks only pictures.
Pictures are recorded with ``pytest tests/tui --snapshot-update``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from textual.app import App

from k3ctl.telemetry.reducer import State, reduce_all
from k3ctl.tui.app import MonitorApp
from k3ctl.tui.widgets.frame import TABS
from tests.tui.scenarios import DEPLOYMENT, END, SCENARIOS

MODES = [name for name, _ in TABS]
SIZES = {"120x36": (120, 36), "80x24": (80, 24)}
CASES = [(scenario, "120x36") for scenario in SCENARIOS if scenario not in ("throttled", "four-trays")] + [
    ("healthy", "80x24")
]


@functools.cache
def state_of(scenario: str) -> State:
    return reduce_all(SCENARIOS[scenario]())


def app_of(scenario: str) -> MonitorApp:
    return MonitorApp(state=state_of(scenario), deployment=DEPLOYMENT, clock=lambda: END, redraw_s=3600)


async def texts_of(app: App[None], modes: Sequence[str], size: tuple[int, int] = (120, 36)) -> list[str]:
    """What each screen shows, line by line."""
    assert isinstance(app, MonitorApp)
    shown = []
    async with app.run_test(size=size) as pilot:
        for mode in modes:
            await app.action_show(mode)
            await pilot.pause()
            app.redraw()
            await pilot.pause()
            shown.append(visible(app))
    return shown


def visible(app: App[None]) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


WORDS = {
    "healthy overview": [
        "752,712 tokens",
        "● up",
        "no alerts",
        "250–500 ms",
        "5.7 of 18.4",
        "97.4 % specialized",
    ],
    "healthy path": ["specialized", "prefill in batch", "48 of 64 rows", "known to the witness"],
    "healthy speculation": ["near golden", "0.85", "golden 3.84", "of at most 8"],
    "healthy gpus": ["4 × NVIDIA GB300", "18/18", "healthy", "61.0"],
    "healthy bench": ["1 of 3 steps done", "concurrent@4", "381–417", "to come", "B300 TP8 8K/1K"],
    "healthy log": ["✓ capture", "answers"],
    "stalled overview": ["FAIL stalled", "no token or step for 45 s", "12 waiting: capacity 12"],
    "stalled log": ["py-spy dump", "all ranks in a collective"],
    "not-engaged path": ["WARN path-not-engaged", "over the row limit", "98.3 %", "OVER by 48"],
    "not-engaged overview": ["1.7 % specialized, rest over the row limit"],
    "acceptance-collapse speculation": ["drafter useless", "1.00", "WARN acceptance-collapse"],
    "restarting overview": ["✗ down 15 s: connection refused", "FAIL server-down"],
    "restarting log": ["connection refused", "restarted: its counters went back"],
    "restarting path": ["unknown: no server answers"],
    "no-gpu gpus": ["laptop: no NVIDIA driver on this host (LibraryNotFound)"],
    "no-gpu overview": ["752,712 tokens", "no alerts"],
}
"""Scenario and screen → what must be readable at 120x36. Big figures are drawn, so their totals are looked for."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("scenario", "size"), CASES, ids=str)
def test_a_screen_says_its_words_and_looks_like_its_picture(
    snap_compare: Callable[..., bool], scenario: str, size: str, mode: str
) -> None:
    missing: list[str] = []

    async def show(pilot: Any) -> None:
        await pilot.app.action_show(mode)
        await pilot.pause()
        pilot.app.redraw()
        await pilot.pause()
        words = WORDS.get(f"{scenario} {mode}", []) if size == "120x36" else []
        shown = visible(pilot.app)
        missing.extend(word for word in words if word not in shown)

    same = snap_compare(app_of(scenario), terminal_size=SIZES[size], run_before=show)
    assert missing == []
    assert same


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_at_80x24_every_screen_keeps_its_state_alerts_and_keys(scenario: str) -> None:
    for shown in await texts_of(app_of(scenario), MODES, (80, 24)):
        lines = shown.splitlines()
        assert len(lines) == 24
        assert any(word in lines[0] for word in ("up", "down"))
        assert "1 Overview" in lines[1]
        assert "6 Log" in lines[1]
        assert any(word in lines[2] for word in ("no alerts", "FAIL", "WARN"))
        assert "Help" in lines[-1]


@pytest.mark.parametrize("size", [(20, 8), (40, 10), (300, 90)], ids=str)
async def test_no_size_breaks_a_screen(size: tuple[int, int]) -> None:
    assert all(await texts_of(app_of("stalled"), MODES, size))


async def test_several_nodes_stand_in_one_table_the_worst_gpu_first_and_say_their_nvlink_domain() -> None:
    (shown,) = await texts_of(app_of("four-trays"), ["gpus"], (160, 40))
    rows = [line.split()[1:3] for line in shown.splitlines() if re.search(r" tray\d +\d +\d+/278", line)]
    assert rows[0] == ["tray2", "2"] and len(rows) == 12
    assert rows[1:5] == [["tray0", str(index)] for index in range(4)]
    assert "one NVLink domain of 12 GPUs on 3 nodes" in shown
    assert "tray3: ssh: connect to host tray3 port 22: No route to host" in shown


async def test_an_empty_state_says_what_is_missing() -> None:
    shown = await texts_of(MonitorApp(clock=lambda: END), MODES)
    words = [
        "no server named",
        "unknown: no server answers",
        "–",
        "GPUs are not being read",
        "no benchmark is being followed",
        "no run of `k3ctl serve` is being followed",
    ]
    assert [word for word, text in zip(words, shown, strict=True) if word not in text] == []
