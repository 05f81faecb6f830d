"""Prepared for the next session on GPUs: run ``k3ctl doctor --active`` and keep what it says. Safe to repeat.

    python scripts/gpu/doctor_active.py --out OUT [--profile NAME]

Writes ``doctor-active.txt`` and ``doctor-active.json``, the child's own lines three times over (``triad-N.jsonl``: does
the figure repeat within 1 %?), and ``summary.json``. A file that is there already is not measured again. NVLink
multicast is never used: k3ctl forbids it in the child, and the child refuses to start without that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from k3ctl.gpus import active

REPEATS = 3


def run(argv: list[str], out: Path, env: dict[str, str], limit_s: float) -> str:
    """The program's output, measured now or kept from before."""
    if not out.is_file():
        done = subprocess.run(argv, check=False, env=env, capture_output=True, text=True, timeout=limit_s)
        if done.returncode not in (0, 1):  # 1: doctor found something
            print(f"{argv}: status {done.returncode}\n{done.stderr[-2000:]}")
            return done.stdout
        out.write_text(done.stdout, encoding="utf-8")
    return out.read_text(encoding="utf-8")


def rates(text: str) -> dict[str, float]:
    """GB/s by GPU of a child's lines."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {
        line["uuid"] or str(line["device"]): line["gb_s"]
        for line in lines
        if line.get("triad") and "gb_s" in line
    }


def main() -> None:
    """Measure and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--profile", default="")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "k3ctl", "doctor", "--active"]
    command += ["--profile", asked.profile] if asked.profile else []
    limit_s = active.TRIAD_LIMIT_S + active.COLLECTIVE_LIMIT_S + 120
    print(run(command, asked.out / "doctor-active.txt", dict(os.environ), limit_s))
    run([*command, "--json"], asked.out / "doctor-active.json", dict(os.environ), limit_s)
    env, changed = active.environment(os.environ)
    triad = [
        sys.executable,
        "-P",
        str(active.CHILD),
        "triad",
        str(active.TRIAD_S),
        "--bytes",
        str(active.TRIAD_BYTES),
    ]
    seen = [
        rates(run(triad, asked.out / f"triad-{number}.jsonl", env, active.TRIAD_LIMIT_S))
        for number in range(REPEATS)
    ]
    spread = {
        gpu: max(values) / min(values) - 1
        for gpu in seen[0]
        if len(values := [one[gpu] for one in seen if gpu in one]) == REPEATS
    }
    summary = {"gb_s": seen, "spread": spread, "otherwise_than_serve": changed}
    (asked.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
