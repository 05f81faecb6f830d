"""Who counts: the facts that every witness page carries, whatever engine it is about."""

from __future__ import annotations

from typing import Any

from runtime.versions import KNOWN_VLLM, runtime_version, vllm_version
from runtime.witness.fingerprint import fingerprint


def who(vllm_config: Any) -> dict[str, Any]:
    """runtime, vllm, known_build; rank: of this worker among all of the deployment's; workers: how many these are.

    engine: the data-parallel replica that the worker belongs to. Workers of one engine take every step together;
    engines serve different requests. fingerprint: what this worker runs on and with.
    """
    parallel = vllm_config.parallel_config
    engine = int(getattr(parallel, "data_parallel_rank", 0) or 0)
    workers = int(parallel.world_size)
    return {
        "runtime": runtime_version(),
        "vllm": vllm_version(),
        "known_build": vllm_version() in KNOWN_VLLM,
        "rank": engine * workers + int(parallel.rank),
        "engine": engine,
        "workers": workers * int(getattr(parallel, "data_parallel_size", 1) or 1),
        "fingerprint": fingerprint(),
    }
