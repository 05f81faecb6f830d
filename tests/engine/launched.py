"""Runs as a launch records them, without an engine."""

from __future__ import annotations

import json
from pathlib import Path

from engine_helpers import recorded

from k3ctl.engine import command, preflight, record, rundir
from k3ctl.engine.rundir import Run
from k3ctl.profiles.resolve import ResolvedConfig

PYTHON = preflight.Interpreter("/venv/bin/python", (3, 11, 7), "0.33.0", "2.13.0", ())
GPUS = [{"index": i, "name": "NVIDIA GB300", "uuid": f"GPU-{i}"} for i in range(4)]


def run_of(resolved: ResolvedConfig, gpus: list[dict[str, object]] | None = None) -> Run:
    """A run in the state directory with the record that a launch would write."""
    run = recorded(vllm="0.33.0")
    built = command.build(resolved, PYTHON, run, ("/s", "/t"), {})
    kept = record.made(resolved, built.args, built.env, python=PYTHON, gpus=gpus)
    return rundir.read(rundir.update(run.dir, launch=kept).dir)


def own_profile(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "mine.yaml"
    lines = {"schema": 1, "name": "mine", "summary": "a profile of my own", "extends": "cpu-tiny"}
    lines |= {"status": "untested"} | changes
    path.write_text("# by hand\n" + json.dumps(lines))
    return path
