"""Where the load goes: an OpenAI-compatible server, what it serves, and what is known about its deployment.

The tokenizer and ``trust_remote_code`` come from the same run record that the server was started from, so
server and client count the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from k3ctl import deployment
from k3ctl.deployment import UNKNOWN, Deployment
from k3ctl.engine import record
from k3ctl.engine.rundir import Run
from k3ctl.errors import UsageError
from k3ctl.loadtest import conditions
from k3ctl.server import models
from k3ctl.server.client import Client
from k3ctl.server.which import base_url

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tiktoken.model", "tokenizer.model")


@dataclass(frozen=True)
class Target:
    """A server: ``url`` has no trailing slash and no ``/v1``."""

    url: str
    model: str
    tokenizer: str
    trust_remote_code: bool = False
    deployment: Deployment = UNKNOWN
    run_dir: str | None = None
    launch: Mapping[str, Any] | None = None
    """The server's conditions (``conditions.of_run``); None for a server that k3ctl did not start."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Target:
        """Rebuild from ``as_dict``'s JSON."""
        return cls(**{**data, "deployment": Deployment(**data["deployment"])})


def from_run(run: Run) -> Target:
    """The target that a run record describes."""
    config = record.config(run)
    return Target(
        url=base_url(run.url),
        model=run.served_model_name,
        tokenizer=run.tokenizer,
        trust_remote_code=bool(config and config.get("trust_remote_code", False)),
        deployment=deployment.of_run(run),
        run_dir=str(run.dir),
        launch=conditions.of_run(run),
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


def with_server_facts(target: Target, info: Mapping[str, Any]) -> Target:
    """Fill what is still unknown about the deployment from the server's own metrics and witness."""
    return replace(target, deployment=target.deployment.known_from(info))
