"""Space and file-system type where the weights really go: the resolved caches; and /dev/shm."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from k3ctl.host.machine import ROOT, text
from k3ctl.host.types import Disk

SHM = "/dev/shm"
K3_FOLDER = "models--moonshotai--Kimi-K3"


def caches(env: Mapping[str, str]) -> dict[str, Path]:
    """Role → directory, by huggingface_hub's own precedence: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME."""
    base = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or "~").expanduser() / ".cache")
    home = Path(env.get("HF_HOME") or base / "huggingface").expanduser()
    return {
        "hf-cache": Path(
            env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
        ).expanduser(),
        "xet-cache": Path(env.get("HF_XET_CACHE") or home / "xet").expanduser(),
    }


def disks(env: Mapping[str, str], root: Path = ROOT) -> tuple[Disk, ...]:
    """Space and file-system type of each cache; a directory that does not exist yet counts as its parent."""
    mounts = _mounts(text(root / "proc/self/mounts") or "")
    return tuple(_disk(role, path, mounts) for role, path in caches(env).items())


def k3_shards(cache: Path) -> int:
    """Weight files of K3 in a Hugging Face cache: the fullest snapshot counts."""
    snapshots = cache / K3_FOLDER / "snapshots"
    return max((len(list(snapshot.glob("*.safetensors"))) for snapshot in snapshots.glob("*")), default=0)


def shm_bytes() -> int | None:
    """Size of /dev/shm."""
    try:
        stat = os.statvfs(SHM)
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize


def _disk(role: str, path: Path, mounts: list[tuple[str, str]]) -> Disk:
    resolved = path.resolve()
    existing = next((p for p in (resolved, *resolved.parents) if p.exists()), Path("/"))
    try:
        stat = os.statvfs(existing)
    except OSError:
        return Disk(role=role, path=str(path), resolved=str(resolved))
    return Disk(
        role=role,
        path=str(path),
        resolved=str(resolved),
        total_bytes=stat.f_blocks * stat.f_frsize,
        free_bytes=stat.f_bavail * stat.f_frsize,
        fs_type=_fs_type(str(existing), mounts),
        shards=k3_shards(resolved) if role == "hf-cache" else None,
    )


def _mounts(content: str) -> list[tuple[str, str]]:
    out = []
    for line in content.splitlines():
        words = line.split()
        if len(words) >= 3:
            out.append((words[1].replace("\\040", " "), words[2]))
    return out


def _fs_type(path: str, mounts: list[tuple[str, str]]) -> str | None:
    best: tuple[str, str | None] = ("", None)
    for point, kind in mounts:
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
