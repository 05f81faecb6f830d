"""What every bundle holds besides its measurements: the machine, the server's record and log; and no secrets.

BUNDLE/
  environment.json       package versions and an allow-list of variables
  hardware.json          k3ctl.nvml/1 snapshots before and after
  active.json            the last `doctor --active` of the run's GPUs: what their memory really does
  engine.json            the server's run record: argv, environment set by k3ctl, states
  profile.yaml           the serving profile as the server was started with it, when k3ctl started it
  profile.base.yaml      the profile that it extends, if any
  raw/engine.log         the end of the engine's log
  manifest.json          what the bundle is, how valid it is, what was redacted
  summary.json           computed from raw/ alone
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
from k3ctl.bundle.kind import Kind
from k3ctl.engine import logs, record
from k3ctl.engine.rundir import Run
from k3ctl.machine import measured
from k3ctl.redact import Redactor

LOG_TAIL_BYTES = 256 * 1024
PACKAGES = ("guidellm", "vllm", "torch", "transformers", "flashinfer-python", "triton", "nvidia-cutlass-dsl")
ENVIRONMENT = ("VLLM_", "K3_", "K3CTL_", "CUDA_", "NCCL_", "NVSHMEM_", "TORCH_", "GUIDELLM__", "HF_", "OMP_")


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a bundle says about the machine and the server besides the measurements."""

    run: Run | None = None
    hardware_before: Mapping[str, Any] | None = None
    hardware_after: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Enclosed:
    """What ``enclose`` did: for the manifest."""

    engine_log: dict[str, Any] | None
    redactions: dict[str, int]


def redactor(variables: Mapping[str, str] | None = None) -> Redactor:
    """Hides what this process and this machine must not tell."""
    known = os.environ if variables is None else variables
    return redact.redactor(known, host=socket.gethostname(), user=_user(), home=str(Path.home()))


def enclose(
    directory: Path, around: Surroundings, hide: Redactor, variables: Mapping[str, str] | None = None
) -> Enclosed:
    """Add what surrounds the measurements, then redact every file of the directory in place."""
    (directory / "raw").mkdir(parents=True, exist_ok=True)
    engine_log = _engine_log(around.run, directory / "raw")
    dump(directory / "hardware.json", {"before": around.hardware_before, "after": around.hardware_after})
    dump(directory / "environment.json", _environment(os.environ if variables is None else variables))
    if around.run is not None:
        dump(directory / "engine.json", _record(around.run))
        seen = around.run.launch.get("gpus") or ()
        if (known := measured.of_gpus(str(gpu.get("uuid") or "") for gpu in seen)) is not None:
            dump(directory / "active.json", known)
        texts = record.profile_texts(around.run).values()
        for name, text in zip(("profile.yaml", "profile.base.yaml"), texts, strict=False):
            (directory / name).write_text(text, encoding="utf-8")
    return Enclosed(engine_log, hidden(directory, hide))


def finish(
    directory: Path, kind: Kind, summary: Mapping[str, Any], enclosed: Enclosed, said: Mapping[str, Any]
) -> dict[str, Any]:
    """Write summary and manifest, and seal; returns the manifest. ``said``: what this kind states in it."""
    dump(directory / "summary.json", summary)
    manifest = {
        "schema": kind.schema,
        "id": directory.name,
        "k3ctl": __version__,
        **said,
        "validity": dict(kind.validity(summary)),
        "engine_log": enclosed.engine_log,
        "redactions": enclosed.redactions,
    }
    dump(directory / "manifest.json", manifest)
    seal.seal(directory, manifest)
    return manifest


def dump(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=list) + "\n", encoding="utf-8")


def hidden(directory: Path, hide: Redactor) -> dict[str, int]:
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


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
