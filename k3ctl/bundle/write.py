"""Turn a benchmark's result directory into a bundle: add what explains the numbers, hide secrets, seal.

BUNDLE/
  manifest.json          what was measured, on what, how valid it is, what was redacted
  summary.json           computed from raw/ alone
  command.txt            the client's command lines, as an operator would type them
  engine.json            the server's run record: argv, environment set by k3ctl, states
  profile.yaml           the serving profile as the server was started with it, when k3ctl started it
  profile.base.yaml      the profile that it extends, if any
  environment.json       package versions and an allow-list of variables
  hardware.json          k3ctl.nvml/1 snapshots before and after
  raw/                   what the client, the server and the sampler wrote
  SHA256SUMS             every file above
  statement.intoto.json  unsigned in-toto statement over SHA256SUMS
"""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import importlib.metadata
import json
import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k3ctl import __version__, redact
from k3ctl.bundle import seal
from k3ctl.engine import logs, record
from k3ctl.engine.rundir import Run
from k3ctl.loadtest import summary as summaries
from k3ctl.redact import Redactor

SCHEMA = "k3ctl.bundle/1"
LOG_TAIL_BYTES = 256 * 1024
PACKAGES = ("guidellm", "vllm", "torch", "transformers", "flashinfer-python", "triton", "nvidia-cutlass-dsl")
ENVIRONMENT = ("VLLM_", "K3_", "K3CTL_", "CUDA_", "NCCL_", "NVSHMEM_", "TORCH_", "GUIDELLM__", "HF_", "OMP_")


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a bundle says about the machine and the server besides the measurements."""

    run: Run | None = None
    hardware_before: Mapping[str, Any] | None = None
    hardware_after: Mapping[str, Any] | None = None


def write(
    directory: Path, around: Surroundings, *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Complete and seal the bundle in ``directory``, which holds ``raw/``; returns the manifest.

    The summary is computed after redaction, so that it always follows from the files that are kept.
    """
    variables = os.environ if environment is None else environment
    hide = redact.redactor(variables, host=socket.gethostname(), user=_user(), home=str(Path.home()))
    raw = directory / "raw"
    engine_log = _engine_log(around.run, raw)
    ask = json.loads((raw / "ask.json").read_text(encoding="utf-8"))
    lines = [hide.command_line(run["argv"]) for run in ask["runs"]]
    (directory / "command.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _dump(directory / "hardware.json", {"before": around.hardware_before, "after": around.hardware_after})
    _dump(directory / "environment.json", _environment(variables))
    if around.run is not None:
        _dump(directory / "engine.json", _record(around.run))
        texts = record.profile_texts(around.run).values()
        for name, text in zip(("profile.yaml", "profile.base.yaml"), texts, strict=False):
            (directory / name).write_text(text, encoding="utf-8")
    redactions = _hide(directory, hide)
    summary = summaries.summarize(raw)
    _dump(directory / "summary.json", summary)
    manifest = {
        "schema": SCHEMA,
        "id": directory.name,
        "k3ctl": __version__,
        "created_at": summary["ended_at"],
        "preset": summary["preset"],
        "deviations": summary["deviations"],
        "seed": ask["workload"]["seed"],
        "model": summary["model"],
        "tokenizer": _tokenizer(ask["target"]["tokenizer"], hide),
        "client": summary["client"],
        "deployment": summary["deployment"],
        "conditions": summary["conditions"],
        "validity": validity(summary),
        "engine_log": engine_log,
        "redactions": redactions,
    }
    _dump(directory / "manifest.json", manifest)
    seal.seal(directory, manifest)
    return manifest


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


def _hide(directory: Path, hide: Redactor) -> dict[str, int]:
    """Redact every text file in place; files without a secret keep their bytes."""
    counts: dict[str, int] = {}
    for path in seal.files(directory):
        data = path.read_bytes()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode(errors="replace")
        method = {".log": hide.log, ".json": hide.json, ".jsonl": hide.json}.get(path.suffix, hide.text)
        clean, count = method(text)
        if count:
            path.write_text(clean, encoding="utf-8")
            counts[str(path.relative_to(directory))] = count
    return counts


def _engine_log(run: Run | None, raw: Path) -> dict[str, Any] | None:
    """Copy the end of the engine's log to ``raw/engine.log``; hash and size of the whole."""
    if run is None or not run.engine_log.is_file():
        return None
    digest, size = hashlib.sha256(), 0
    for part in logs.parts(run.engine_log):
        with part.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
    tail = logs.tail(run.engine_log, LOG_TAIL_BYTES)
    if size > LOG_TAIL_BYTES:
        tail = tail.partition(b"\n")[2]
    (raw / "engine.log").write_bytes(tail)
    return {"sha256": digest.hexdigest(), "bytes": size, "tail_bytes": len(tail)}


def _record(run: Run) -> dict[str, Any]:
    record = {
        field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name != "dir"
    }
    return dict(redact.PLAIN.value(json.loads(json.dumps(record, default=list))))


def _environment(variables: Mapping[str, str]) -> dict[str, Any]:
    versions = {"python": platform.python_version(), "k3ctl": __version__}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    system = {"kernel": platform.release(), "machine": platform.machine(), "cpus": os.cpu_count()}
    return {"versions": versions, "system": system, "variables": redact.allowed(variables, ENVIRONMENT)}


def _tokenizer(name: str, hide: Redactor) -> dict[str, Any]:
    """Name of the tokenizer, and the hash of its main file when it is a local directory."""
    path = Path(name).expanduser() / "tokenizer.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    return {"name": hide.text(name)[0], "sha256": digest}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=list) + "\n", encoding="utf-8")
