"""The conditions of a measured number: everything that moves speed. One list, owned here, sealed in every bundle.

Two numbers may be compared when every condition is known on both sides and equal. Published numbers state only some
of them (``published``); what they leave out is not asked. Pure, but for ``of_run``, which looks at the model's files
and at this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.engine.rundir import Run
from k3ctl.host import machine

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """One condition. ``label``: for people; ``optional``: may be absent on both sides."""

    label: str
    published: bool = False
    optional: bool = False


CONDITIONS: Mapping[str, Condition] = {
    # what published numbers state
    "gpu": Condition("GPU", published=True),
    "gpus": Condition("GPUs", published=True),
    "tensor_parallel_size": Condition("TP", published=True),
    "path": Condition("path", published=True),
    "num_speculative_tokens": Condition("K", published=True),
    "acceptance": Condition("acceptance", published=True),
    "acceptance_length": Condition("synthetic acceptance length", published=True, optional=True),
    "prompt_tokens": Condition("prompt tokens", published=True),
    "output_tokens": Condition("output tokens", published=True),
    "unit": Condition("unit", published=True),
    "concurrency": Condition("concurrency", published=True),
    # the server
    "model": Condition("served model"),
    "model_digest": Condition("model digest"),
    "arguments": Condition("arguments"),
    "environment": Condition("environment"),
    "versions": Condition("versions"),
    "machine": Condition("machine"),
    "prefix_caching": Condition("prefix caching", optional=True),
    "prefix_reset": Condition("prefix cache before the rung", optional=True),
    # the load
    "preset": Condition("preset"),
    "load": Condition("load"),
    "sampling": Condition("sampling"),
    "reasoning_effort": Condition("reasoning effort", optional=True),
    "seed": Condition("seed"),
    "warmup": Condition("warm-up and cool-down"),
    "endpoint": Condition("endpoint"),
    "sessions": Condition("sessions", optional=True),
    # the method
    "client": Condition("client"),
    "driver": Condition("driver"),
    "definitions": Condition("metric definitions"),
}

OF_ROW = frozenset({"path", "acceptance", "acceptance_length", "concurrency", "unit", "prefix_reset"})
"""Conditions that differ from row to row; the others hold for a whole bundle."""

ELSEWHERE = frozenset(
    {
        "host", "port", "uds", "root_path", "api_key", "model", "tokenizer", "served_model_name", "master_addr",
        "master_port", "node_rank", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "log_config_file",
        "torch_profiler_dir", "data_parallel_address", "data_parallel_rpc_port",
    }
)  # fmt: skip
"""Arguments that say where a server listens, what it is called and where it writes: no speed in them."""
NOWHERE = ("_PORT", "_ADDR", "HOST_IP", "_HOST", "_PATH", "_DIR", "_KEY", "_TOKEN")
"""Ends of the names of variables of that sort."""
EFFORT = "reasoning_effort"
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
DESCRIPTIONS = ("config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json")


def of_run(run: Run) -> dict[str, Any]:
    """The server's part, from the record of its launch; a part that cannot be known is None."""
    kept, cpu = run.launch, machine.cpu()
    args = kept.get("args")
    revision = args.get("revision") if isinstance(args, Mapping) else None
    return {
        "model_digest": model_digest(str(kept.get("model") or ""), revision),
        "arguments": _settings(args) if isinstance(args, Mapping) else None,
        "environment": _variables(kept["env"]) if isinstance(kept.get("env"), Mapping) else None,
        "versions": dict(kept["versions"]) if isinstance(kept.get("versions"), Mapping) else None,
        "machine": f"{cpu.model}, {cpu.count} CPUs",
    }


def model_digest(model: str, revision: str | None = None) -> str | None:
    """A digest of a model directory, or the commit of a repository; None when neither is known.

    Of a directory: the text of what describes the model, and names and sizes of the weights (1.5 TB are not read).
    """
    directory = Path(model)
    if model and directory.is_dir():
        with contextlib.suppress(OSError):
            return _directory_digest(directory)
        return None
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    reference = cache / f"models--{model.replace('/', '--')}" / "refs" / (revision or "main")
    try:
        return f"{model}@{reference.read_text(encoding='utf-8').strip()}"
    except (OSError, ValueError):
        return f"{model}@{revision}" if model and revision else None


def _directory_digest(directory: Path) -> str:
    sha = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name in DESCRIPTIONS and path.is_file():
            sha.update(path.name.encode() + b"\0" + path.read_bytes())
        elif path.suffix in WEIGHTS and path.is_file():
            sha.update(f"{path.name}\0{path.stat().st_size}\0".encode())
    return sha.hexdigest()


def of_bundle(ask: Mapping[str, Any], definitions: int) -> dict[str, Any]:
    """What holds for every row of a result, from its ``ask.json``; what is not known is None."""
    load, target = ask["workload"], ask["target"]
    served, launch = target["deployment"], target.get("launch") or {}
    body = dict(load.get("body") or {})
    effort = body.pop(EFFORT, None)
    return {
        "gpu": served.get("gpu"),
        "gpus": served.get("gpus"),
        "tensor_parallel_size": served.get("tensor_parallel_size"),
        "num_speculative_tokens": served.get("num_speculative_tokens"),
        "prompt_tokens": load["prompt_tokens"] + (load.get("prefix_tokens") or 0),
        "output_tokens": load["output_tokens"],
        "model": target["model"],
        **{
            name: launch.get(name)
            for name in ("model_digest", "arguments", "environment", "versions", "machine")
        },
        "prefix_caching": served.get("prefix_caching"),
        "preset": Path(load["preset"]).name,
        "load": {
            name: load.get(name) for name in ("duration_s", "requests", "prefix_tokens", "prefix_count", "sample_size")
        },
        "sampling": body,
        "reasoning_effort": effort,
        "seed": load["seed"],
        "warmup": [load["warmup"], load["cooldown"]],
        "endpoint": load["request_format"],
        "sessions": load.get("sessions"),
        "client": ask["client"],
        "driver": load["driver"],
        "definitions": definitions,
    }  # fmt: skip


def differences(
    ours: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    published: bool = False,
    varied: frozenset[str] = frozenset(),
    told: Callable[[str, Any], str] = lambda _, value: str(value),
) -> tuple[str, ...]:
    """Why two sets of conditions are not equal, one sentence each; empty when they are.

    ``published``: only those that published numbers state. ``varied``: those that were changed on purpose.
    """
    return tuple(
        text
        for name, condition in CONDITIONS.items()
        if name not in varied and (condition.published or not published)
        for text in _difference(condition, name, ours.get(name), other.get(name), told)
    )


def _difference(
    condition: Condition, name: str, mine: Any, theirs: Any, told: Callable[[str, Any], str]
) -> Iterator[str]:
    label = condition.label
    if mine is None and theirs is None:
        if not condition.optional:
            yield f"{label} is not known on either side"
    elif isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                here, there = (_shown(side.get(key)) for side in (mine, theirs))
                yield f"{label}: `{key}` {here} here, {there} there"
    elif mine is None or theirs is None:
        side = "here" if mine is None else "there"
        known = (
            ""
            if isinstance(mine or theirs, Mapping)
            else f" ({theirs if mine is None else mine} on the other side)"
        )
        yield f"{label} is not known {side}{known}"
    elif mine != theirs:
        yield f"{label}: {told(name, mine)} here, {told(name, theirs)} there"


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _settings(value: Any) -> Any:
    """Arguments without those of ``ELSEWHERE``, at any depth."""
    if isinstance(value, Mapping):
        return {str(k): _settings(v) for k, v in value.items() if k not in ELSEWHERE}
    return [_settings(item) for item in value] if isinstance(value, list | tuple) else value


def _variables(env: Mapping[str, Any]) -> dict[str, str]:
    """Variables without those that name a place, a port or a key."""
    return {
        name: str(value)
        for name, value in env.items()
        if not name.endswith(NOWHERE) and not str(value).startswith("/") and name != "TMPDIR"
    }
