"""Takes a bounded profiler window from a running server and finds the trace it wrote. I/O only; ``trace`` reads it."""

from __future__ import annotations

import time
from pathlib import Path

from k3ctl.deployment import Deployment
from k3ctl.errors import EngineError, UsageError
from k3ctl.server.client import BadAnswer, Client
from k3ctl.verdict import drives

WINDOW = {
    # the first steps hold the prefill; then a few decode steps, however long the request or k3ctl lives
    "delay_iterations": 3,
    "max_iterations": 8,
    "profiler_kwargs": {"with_stack": False, "record_shapes": False},
}
"""What vLLM 0.33.0 lets a session override; older versions ignore it and profile the whole request."""
WRITE_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 300.0
HINT = (
    "start it with `--set profiler_config.profiler=torch --set profiler_config.torch_profiler_dir=DIR "
    "--set profiler_config.ignore_frontend=true --set profiler_config.torch_profiler_with_stack=false`"
)


def directory(server: Deployment) -> Path:
    """Where a server writes its traces.

    Raises:
        UsageError: it was started without the torch profiler, or it is not known how it was started.
    """
    if server.traces:
        return Path(server.traces)
    raise UsageError("the server was started without a profiler", hint=HINT)


def take(client: Client, model: str, out: Path, tokens: int) -> list[Path]:
    """Profile a few decode steps of one request and return the traces they left in ``out``, one per rank.

    Raises:
        UsageError: the server has no profiler routes.
        EngineError: no trace appeared in time.
    """
    before = _traces(out)
    try:
        client.text("/start_profile", WINDOW, timeout_s=STOP_TIMEOUT_S)
    except BadAnswer as error:
        if error.status == 404:
            raise UsageError("the server has no profiler routes", hint=HINT) from None
        raise
    try:
        drives.drive(client, model, 1, tokens)
    finally:
        client.text("/stop_profile", {}, timeout_s=STOP_TIMEOUT_S)
    deadline = time.monotonic() + WRITE_TIMEOUT_S
    while time.monotonic() < deadline:
        fresh = {path: size for path, size in _traces(out).items() if path not in before}
        time.sleep(1.0)
        if fresh and all(_traces(out).get(path) == size for path, size in fresh.items()):
            return sorted(fresh)
    raise EngineError(
        f"the profiler wrote no trace to `{out}` in {WRITE_TIMEOUT_S:.0f} s", hint="see the engine's log"
    )


def _traces(out: Path) -> dict[Path, int]:
    found = [*out.glob("**/*.json"), *out.glob("**/*.json.gz")]
    return {path: path.stat().st_size for path in found if path.is_file()}
