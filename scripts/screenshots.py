"""Regenerate the pictures of the live screen in ``docs/images/``.

    python scripts/screenshots.py [--only monitor-overview]

The screens are drawn headless from recordings, exported as SVG and rendered with resvg: ``monitor-cpu-tiny``
from a recording of the real CPU server, the others from the synthetic ones of the tests
(``tests/tui/scenarios.py``). Text needs a monospaced font on this machine: DejaVu Sans Mono, Fira Code or
JetBrains Mono are looked for, another one is named with ``--font FILE --family NAME``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from k3ctl.deployment import Deployment
from k3ctl.telemetry import recording
from k3ctl.telemetry.recording import Recording
from k3ctl.telemetry.replay import Player
from k3ctl.tui.app import MonitorApp
from tests.tui import scenarios

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
REAL = IMAGES.parent.parent / "tests" / "fixtures" / "recording-cpu-tiny.jsonl"
FONTS = (
    ("DejaVu Sans Mono", "DejaVuSansMono"),
    ("Fira Code", "FiraCode"),
    ("JetBrains Mono", "JetBrainsMono"),
)
FONT_DIRS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), Path.home() / ".local/share/fonts")

SHOTS = (
    # (file name, scenario, screen, columns x lines)
    ("monitor-overview", "healthy", "overview", (120, 36)),
    ("monitor-path-not-engaged", "not-engaged", "path", (120, 36)),
    ("monitor-speculation", "healthy", "speculation", (120, 36)),
    ("monitor-gpus", "throttled", "gpus", (120, 32)),
    ("monitor-four-trays", "four-trays", "gpus", (160, 36)),
    ("monitor-bench", "healthy", "bench", (120, 36)),
    ("monitor-stalled", "stalled", "log", (120, 36)),
    ("monitor-80x24", "restarting", "overview", (80, 24)),
)


async def screenshot(player: Player, mode: str, size: tuple[int, int], deployment: Deployment) -> str:
    """The SVG of one screen at the end of a recording."""
    app = MonitorApp(
        player=None, state=player.state, deployment=deployment, clock=lambda: player.at, redraw_s=3600
    )
    async with app.run_test(size=size) as pilot:
        await app.action_show(mode)
        await pilot.pause()
        app.redraw()
        await pilot.pause()
        return app.export_screenshot(title="k3ctl monitor")


def font(name: str | None, family: str | None) -> tuple[str, list[str]]:
    """Family and files of a monospaced font."""
    if name:
        return family or Path(name).stem, [name]
    for known, prefix in FONTS:
        files = [
            str(file)
            for folder in FONT_DIRS
            if folder.is_dir()
            for file in sorted(folder.rglob(f"{prefix}*.ttf"))
        ]
        if files:
            return known, files
    sys.exit("no monospaced font found: name one with --font FILE --family NAME")


def render(svg: str, family: str, files: list[str]) -> bytes:
    """The PNG of an SVG."""
    import resvg_py

    fonts = {
        "monospace_family": family,
        "font_family": family,
        "font_files": files,
        "skip_system_fonts": True,
    }
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, **fonts))


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="name of one picture")
    parser.add_argument("--font")
    parser.add_argument("--family")
    options = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    family, files = font(options.font, options.family)
    IMAGES.mkdir(parents=True, exist_ok=True)
    shots = [shot for shot in SHOTS if options.only in (None, shot[0])]
    jobs = [
        (name, Recording(tuple(scenarios.SCENARIOS[scenario]()), 0), mode, size, scenarios.DEPLOYMENT)
        for name, scenario, mode, size in shots
    ]
    if options.only in (None, "monitor-cpu-tiny"):
        jobs.append(("monitor-cpu-tiny", recording.read(REAL), "overview", (120, 36), Deployment()))
    for name, recorded, mode, size, deployment in jobs:
        player = Player(recorded)
        player.seek_to(player.length_s)
        svg = asyncio.run(screenshot(player, mode, size, deployment))
        (IMAGES / f"{name}.png").write_bytes(render(svg, family, files))
        print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
