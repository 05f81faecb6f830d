"""A run whose reaper died before it took over leaves nothing."""

from __future__ import annotations

import time
from pathlib import Path

from k3ctl.engine import launch, rundir
from k3ctl.engine.rundir import Run


def test_scratch_directories_of_a_start_that_never_happened_are_removed(
    tmp_path: Path, state_dir: Path
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    run = rundir.create(
        Run(
            id=rundir.new_id("cpu-tiny"),
            profile="cpu-tiny",
            host="127.0.0.1",
            port=1,
            url="http://127.0.0.1:1",
            served_model_name="k3-tiny",
            tokenizer="",
            argv=(),
            env={},
            started_at=time.time(),
            scratch=(str(scratch),),
        )
    )
    ended = launch.stop(run)
    assert not scratch.exists()
    assert ended.state == "failed"
