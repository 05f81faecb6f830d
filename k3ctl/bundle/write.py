"""Turn a benchmark's result directory into a bundle: add what explains the numbers, hide secrets, seal.

Besides what every bundle holds (``parts``): ``command.txt``, the client's command lines as an operator would type them,
and in ``raw/`` what the client, the server and the sampler wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k3ctl.bundle import parts
from k3ctl.bundle.kind import Kind
from k3ctl.bundle.parts import Surroundings
from k3ctl.loadtest import summary as summaries
from k3ctl.redact import Redactor

SCHEMA = "k3ctl.bundle/1"


def write(
    directory: Path, around: Surroundings, *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Complete and seal the bundle in ``directory``, which holds ``raw/``; returns the manifest.

    The summary is computed after redaction, so that it always follows from the files that are kept.
    """
    hide = parts.redactor(environment)
    raw = directory / "raw"
    ask = json.loads((raw / "ask.json").read_text(encoding="utf-8"))
    lines = [hide.command_line(run["argv"]) for run in ask["runs"]]
    (directory / "command.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    enclosed = parts.enclose(directory, around, hide, environment)
    summary = summaries.summarize(raw)
    said = {
        "created_at": summary["ended_at"],
        "preset": summary["preset"],
        "deviations": summary["deviations"],
        "seed": ask["workload"]["seed"],
        "model": summary["model"],
        "tokenizer": _tokenizer(ask["target"]["tokenizer"], hide),
        "client": summary["client"],
        "deployment": summary["deployment"],
        "conditions": summary["conditions"],
    }
    return parts.finish(directory, BENCH, summary, enclosed, said)


def validity(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Status ``valid``, ``invalid`` or ``partial``, every reason, and flags that a reader must see."""
    reasons = [
        f"c={row['concurrency']}: {finding['text']}"
        for row in summary["rows"]
        for finding in row["findings"]
        if finding["level"] == "invalid"
    ]
    reasons += [f"c={c}: not measured" for c in summary["missing_steps"]]
    if not summary["server_answers"]:
        reasons.append("the server did not answer any more at the end")
    flags = {
        "synthetic_acceptance": summary["synthetic"],
        "partial": summary["partial"],
        "deviates_from_preset": bool(summary["deviations"]),
        "prefix_cache_hits": any(
            ((row["server"] or {}).get("prefix_hit_share") or 0) > 0.01 for row in summary["rows"]
        ),
        "stream_interval": (summary["deployment"].get("stream_interval") or 1) > 1,
    }
    status = "partial" if summary["partial"] else "valid" if summary["valid"] else "invalid"
    return {"status": status, "reasons": reasons, "flags": [name for name, on in flags.items() if on]}


def _tokenizer(name: str, hide: Redactor) -> dict[str, Any]:
    """Name of the tokenizer, and the hash of its main file when it is a local directory."""
    path = Path(name).expanduser() / "tokenizer.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    return {"name": hide.text(name)[0], "sha256": digest}


BENCH = Kind(SCHEMA, summaries.summarize, validity)
"""The bundle of a benchmark."""
