"""Environment variables that decide how K3 runs, and who set each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from k3ctl.host.machine import ROOT, text
from k3ctl.host.types import Setting

PREFIXES = ("NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_", "VLLM_", "GLOO_", "HF_", "CUDA_", "UCX_")
NAMES = ("LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "XDG_CACHE_HOME")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
_SCRIPTS = ("etc/environment", "etc/profile", "etc/bash.bashrc")
_NCCL_CONF = "etc/nccl.conf"


def relevant(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``env`` that matter here; anything that looks like a credential is left out."""
    return {
        name: value
        for name, value in sorted(env.items())
        if (name.startswith(PREFIXES) or name in NAMES) and not _SECRET.search(name)
    }


def nccl_conf(env: Mapping[str, str], root: Path = ROOT) -> dict[str, Setting]:
    """Variables that NCCL reads from its own configuration files; an environment variable wins over them."""
    out: dict[str, Setting] = {}
    home = env.get("HOME")
    for path in [root / _NCCL_CONF, *([Path(home) / ".nccl.conf"] if home else [])]:
        for line in (text(path) or "").splitlines():
            name, found, value = line.partition("=")
            if found and name.strip().startswith("NCCL_"):
                out[name.strip()] = Setting(name.strip(), value.strip(), str(path))
    return out


def settings(env: Mapping[str, str], root: Path = ROOT) -> tuple[Setting, ...]:
    """The relevant variables with their origin: a site file, the container, the shell, or an NCCL file."""
    here = relevant(env)
    files = _script_origins(env, root)
    first = _environ(root / "proc/1/environ")
    out = []
    for name, value in here.items():
        out.append(Setting(name, value, _origin(name, value, files, first)))
    out.extend(setting for name, setting in nccl_conf(env, root).items() if name not in here)
    return tuple(out)


def _origin(name: str, value: str, files: Mapping[str, str], first: Mapping[str, str]) -> str:
    if name in files:
        return files[name]
    if first.get(name) == value:
        return "the container or service (environment of process 1)"
    return "the calling shell or job script"


def _script_origins(env: Mapping[str, str], root: Path) -> dict[str, str]:
    """Variable → ``file:line`` of the last assignment in the usual start-up files."""
    paths = [root / name for name in _SCRIPTS]
    paths += sorted((root / "etc/profile.d").glob("*.sh"))
    if home := env.get("HOME"):
        paths += [Path(home) / name for name in (".profile", ".bash_profile", ".bashrc", ".zshrc")]
    out = {}
    for path in paths:
        for number, line in enumerate((text(path) or "").splitlines(), start=1):
            if match := re.match(r"\s*(?:export\s+)?([A-Z][A-Z0-9_]*)=", line):
                out[match.group(1)] = f"{path}:{number}"
    return out


def _environ(path: Path) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in (text(path) or "").split("\0"))
    return {name: value for name, found, value in pairs if found}
