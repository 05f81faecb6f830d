"""A run whose reaper died before it took over leaves nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from engine_helpers import recorded

from k3ctl.engine import launch


def test_scratch_directories_of_a_start_that_never_happened_are_removed(
    tmp_path: Path, state_dir: Path
) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="k3-"))
    (scratch / "deep").mkdir()
    run = recorded(scratch=(str(scratch),))
    ended = launch.stop(run)
    assert not scratch.exists()
    assert ended.state == "failed"
