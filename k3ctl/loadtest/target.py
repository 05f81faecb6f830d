"""Where the load goes: an OpenAI-compatible server, what it serves, and what is known about its deployment.

The tokenizer and ``trust_remote_code`` come from the same run record that the server was started from, so
server and client count the same tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from k3ctl.engine.rundir import Run
from k3ctl.errors import UsageError
from k3ctl.facts import products
from k3ctl.server import models
from k3ctl.server.client import Client
from k3ctl.server.which import base_url

CPU = "none (CPU)"
"""GPU product of a deployment on the CPU engine."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tiktoken.model", "tokenizer.model")


@dataclass(frozen=True)
class Deployment:
    """What a number depends on besides the workload; None means not known."""

    profile: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    tensor_parallel_size: int | None = None
    decode_backend: str | None = None
    num_speculative_tokens: int | None = None
    acceptance: str | None = None
    synthetic_acceptance_length: float | None = None
    prefix_caching: bool | None = None
    vllm: str | None = None


@dataclass(frozen=True)
class Target:
    """A server: ``url`` has no trailing slash and no ``/v1``."""

    url: str
    model: str
    tokenizer: str
    trust_remote_code: bool = False
    deployment: Deployment = Deployment()
    run_dir: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Target:
        """Rebuild from ``as_dict``'s JSON."""
        return cls(**{**data, "deployment": Deployment(**data["deployment"])})


def from_run(run: Run) -> Target:
    """The target that a run record describes."""
    argv = list(run.argv)
    return Target(
        url=base_url(run.url),
        model=run.served_model_name,
        tokenizer=run.tokenizer,
        trust_remote_code="--trust-remote-code" in argv,
        deployment=deployment_from_argv(argv, profile=run.profile),
        run_dir=str(run.dir),
    )


def deployment_from_argv(argv: list[str], *, profile: str | None = None) -> Deployment:
    """What a ``vllm serve`` command line says about the deployment."""
    speculation = _json_option(argv, "--speculative-config")
    additional = _json_option(argv, "--additional-config")
    synthetic = speculation.get("rejection_sample_method") == "synthetic"
    tp = int(_option(argv, "--tensor-parallel-size") or 1)
    pp = int(_option(argv, "--pipeline-parallel-size") or 1)
    dp = int(_option(argv, "--data-parallel-size") or 1)
    prefix = (
        True if "--enable-prefix-caching" in argv else False if "--no-enable-prefix-caching" in argv else None
    )
    return Deployment(
        profile=profile,
        gpus=tp * pp * dp,
        tensor_parallel_size=tp,
        decode_backend=additional.get("decode_backend", "auto"),
        num_speculative_tokens=int(speculation.get("num_speculative_tokens", 0)),
        acceptance="none" if not speculation else "synthetic" if synthetic else "real",
        synthetic_acceptance_length=speculation.get("synthetic_acceptance_length"),
        prefix_caching=prefix,
    )


def from_url(url: str, *, model: str | None, tokenizer: str | None, api_key: str | None = None) -> Target:
    """A server known only by its address; the served model's name is asked for when it is not given."""
    base = base_url(url)
    served = model or models.served(Client(base, api_key=api_key))
    if tokenizer is None:
        raise UsageError(
            f"no tokenizer known for `{base}`",
            hint="add `--tokenizer DIR` (or a Hugging Face id), or bench a server that k3ctl started",
        )
    # the client runs in another directory
    directory = Path(tokenizer).expanduser()
    return Target(
        url=base, model=served, tokenizer=str(directory.absolute()) if directory.is_dir() else tokenizer
    )


def preflight(target: Target, client: Client) -> None:
    """Fail with one line before a client that takes ten seconds to import is started.

    Raises:
        EngineError: the server does not answer or does not serve the model.
        UsageError: the tokenizer directory holds no tokenizer.
    """
    models.served(client, target.model)
    directory = Path(target.tokenizer).expanduser()
    is_path = target.tokenizer.startswith(("/", ".", "~")) or directory.exists()
    if is_path and not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise UsageError(
            f"no tokenizer in `{target.tokenizer}`", hint=f"expected one of {', '.join(TOKENIZER_FILES)}"
        )


def gpu_product(names: Sequence[str]) -> str | None:
    """The product of a node's GPUs by their NVML names (``NVIDIA GB300`` → ``GB300``).

    None when they differ or when one is unknown: an unknown GPU equals no published one.
    """
    product = products.common(names)
    return product.token if product else None


def with_server_facts(target: Target, info: Mapping[str, Any]) -> Target:
    """Fill what is still unknown about the deployment from the server's own metrics and witness."""
    known = target.deployment
    fresh = {
        name: value for name, value in info.items() if value is not None and getattr(known, name) is None
    }
    return replace(target, deployment=replace(known, **fresh))


def _option(argv: list[str], name: str) -> str | None:
    for index, part in enumerate(argv):
        if part == name and index + 1 < len(argv):
            return argv[index + 1]
        if part.startswith(f"{name}="):
            return part.split("=", 1)[1]
    return None


def _json_option(argv: list[str], name: str) -> dict[str, Any]:
    text = _option(argv, name)
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
