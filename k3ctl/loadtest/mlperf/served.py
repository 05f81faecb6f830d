"""What a server's run record says that MLPerf's rules ask: checkpoint, drafter, how drafts are accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k3ctl.engine import record
from k3ctl.engine.rundir import Run
from k3ctl.facts.k3 import K3
from k3ctl.loadtest import conditions
from k3ctl.loadtest.mlperf.rules import Served
from k3ctl.profiles import settings

_SNAPSHOT = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})/?$")
SIZES = {"hidden_size": K3.hidden, "num_hidden_layers": K3.layers, "vocab_size": K3.vocab}


def of_run(run: Run | None) -> Served:
    """What is known of a run; nothing for a server that k3ctl did not start."""
    config = record.config(run) if run is not None else None
    if config is None:
        return Served()
    spec = settings.speculator(config)
    drafter = str((spec or {}).get("model") or "")
    return Served(
        model=identity(config.model, config.get("revision")),
        speculation=dict(spec) if spec else {},
        drafter=identity(drafter, (spec or {}).get("revision")) if drafter else (None, None),
        not_k3=not_k3(Path(config.model)),
    )


def identity(model: str, revision: Any = None) -> tuple[str | None, str | None]:
    """Repository and revision of a model: named, in a Hugging Face cache, or a snapshot's directory."""
    if found := _SNAPSHOT.search(str(Path(model).expanduser())):
        return f"{found[1]}/{found[2]}", found[3]
    if Path(model).expanduser().is_dir():
        return None, None
    known = conditions.model_digest(model, str(revision) if revision else None)
    return model, known.rpartition("@")[2] if known else None


def not_k3(directory: Path) -> str:
    """Why a model's directory cannot be Kimi K3, from its own configuration; empty when nothing speaks against it."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    text = config.get("text_config", config) if isinstance(config, Mapping) else {}
    other = [
        f"{name} {text[name]} ({size})"
        for name, size in SIZES.items()
        if isinstance(text, Mapping) and text.get(name) not in (None, size)
    ]
    return f"not Kimi K3: {', '.join(other)}" if other else ""
