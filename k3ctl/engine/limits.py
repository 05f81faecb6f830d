"""vLLM's start-up time limits, from the size of the checkpoint and how fast this machine reads it.

vLLM gives up after 600 s and calls slow storage a failed engine core; a checkpoint of 1.56 TB takes longer than that
on anything slower than 2.6 GB/s.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

READY = "VLLM_ENGINE_READY_TIMEOUT_S"
EXECUTE = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
READY_DEFAULT_S = 600
WARM_UP_S = 900
"""Compiling, autotuning and capturing on top of the load; a first autotune alone took 15 minutes in reports."""
DOWNLOAD_S = 6 * 3600
"""Limit when the checkpoint is not on this machine yet: nothing can be measured."""
FIRST_STEP_S = 1800
MARGIN = 2.0
SAMPLE_BYTES = 256 << 20
SAMPLE_S = 2.0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on this machine. ``read_bytes_s`` is measured, 0 when it could not be."""

    size_bytes: int
    files: tuple[Path, ...]
    read_bytes_s: float = 0.0


def find(model: str, revision: str | None, environ: Mapping[str, str]) -> Checkpoint | None:
    """The weights of a local directory or of the Hugging Face cache; None when they are not here."""
    directory = Path(model).expanduser()
    if not directory.is_dir():
        directory = _snapshot(model, revision, environ)
    files = tuple(sorted(directory.glob("*.safetensors")))
    if not files:
        return None
    return Checkpoint(sum(path.stat().st_size for path in files), files)


def read_rate(files: tuple[Path, ...]) -> float:
    """Bytes per second of a cold sequential read from the largest file; 0 when it cannot be read."""
    path = max(files, key=lambda file: file.stat().st_size)
    try:
        with path.open("rb", buffering=0) as file:
            # pages that are cached already would measure the memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            since, done = time.monotonic(), 0
            while done < SAMPLE_BYTES and time.monotonic() - since < SAMPLE_S:
                data = file.read(8 << 20)
                if not data:
                    break
                done += len(data)
            return done / max(time.monotonic() - since, 1e-6)
    except OSError:
        return 0.0


def variables(checkpoint: Checkpoint | None, known: Mapping[str, str]) -> dict[str, str]:
    """The limits to set; what the profile or the user set already is left alone. Pure."""
    if checkpoint is None:
        ready = DOWNLOAD_S
    elif checkpoint.read_bytes_s > 0:
        ready = round(MARGIN * checkpoint.size_bytes / checkpoint.read_bytes_s) + WARM_UP_S
    else:
        ready = DOWNLOAD_S
    wanted = {READY: str(max(READY_DEFAULT_S, ready)), EXECUTE: str(FIRST_STEP_S)}
    return {name: value for name, value in wanted.items() if name not in known}


def _snapshot(model: str, revision: str | None, environ: Mapping[str, str]) -> Path:
    """Directory of a repository's revision in the Hugging Face cache; it may not exist."""
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    repository = hub / f"models--{model.replace('/', '--')}"
    name = revision or "main"
    reference = repository / "refs" / name
    with contextlib.suppress(OSError, ValueError):
        name = reference.read_text().strip()
    return repository / "snapshots" / name
