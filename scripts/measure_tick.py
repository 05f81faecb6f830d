"""CPU time of one redraw of the live screen, headless, over a synthetic recording.

    python scripts/measure_tick.py [--size 160x50] [--ticks 60]

A tick is what the app does twice a second: fold the new events, build the view, redraw and compose the screen. Here
every tick brings a new metrics page, which is more than a live screen sees (one page a second).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from k3ctl.telemetry.recording import Recording
from k3ctl.telemetry.replay import Player
from k3ctl.tui.app import MonitorApp
from k3ctl.tui.widgets.frame import TABS
from tests.tui import scenarios


async def measure(mode: str, size: tuple[int, int], ticks: int) -> list[float]:
    """Milliseconds of CPU per tick on one screen."""
    recording = Recording(tuple(scenarios.healthy()))
    player = Player(recording)
    player.seek_to(200)
    app = MonitorApp(player=player, deployment=scenarios.DEPLOYMENT, clock=lambda: 0.0, redraw_s=3600.0)
    times = []
    async with app.run_test(size=size) as pilot:
        await app.action_show(mode)
        await pilot.pause()
        for _ in range(ticks):
            start = time.process_time()
            player.seek(1.0)
            app.tick()
            await pilot.pause()
            times.append((time.process_time() - start) * 1e3)
    return times


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="160x50")
    parser.add_argument("--ticks", type=int, default=60)
    options = parser.parse_args()
    width, height = (int(part) for part in options.size.split("x"))
    print(
        f"CPU ms per tick at {width}x{height}, {options.ticks} ticks a screen, Python {sys.version.split()[0]}"
    )
    for mode, title in TABS:
        times = sorted(asyncio.run(measure(mode, (width, height), options.ticks)))
        p95 = times[int(len(times) * 0.95)]
        print(f"  {title:<12} median {statistics.median(times):6.1f}   p95 {p95:6.1f}   max {times[-1]:6.1f}")


if __name__ == "__main__":
    main()
