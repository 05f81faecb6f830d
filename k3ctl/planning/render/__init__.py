"""One resolved configuration as files that start the same server without k3ctl."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from k3ctl import files as contents
from k3ctl.errors import UsageError, unknown
from k3ctl.planning.render import kubernetes, safe, scripts, systemd
from k3ctl.planning.render.base import Site, config_files
from k3ctl.profiles.resolve import ResolvedConfig

Files = Mapping[str, str]

FORMATS: Mapping[str, Callable[[ResolvedConfig, Site], Files]] = {
    "command": scripts.command,
    "config": config_files,
    "nodes": scripts.nodes,
    "ray": scripts.ray,
    "slurm": scripts.slurm,
    "kubernetes": kubernetes.manifests,
    "systemd": systemd.units,
}
"""Every format: ``command`` (shell), ``config`` (vLLM's YAML and an environment file), launch plans."""


def write(files: Files, folder: Path) -> list[Path]:
    """Write ``files`` into ``folder`` and return their paths; raises rather than overwrite another text."""
    for name, text in files.items():
        target = folder / name
        if target.exists() and not _holds(target, text):
            raise UsageError(f"`{target}` exists and differs", hint="move it away, or choose another `--out`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into `{folder}`: {error.strerror or error}") from error
    return [folder / name for name in files]


def _holds(target: Path, text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return contents.read(target, len(text.encode()) + 1) == text.encode()
    return False


__all__ = ["FORMATS", "Files", "Site", "render", "write"]


def render(resolved: ResolvedConfig, format_name: str, site: Site | None = None) -> Files:
    """Files by name. Raises ``UsageError`` for an unknown format, or a model that is not there yet."""
    if format_name not in FORMATS:
        raise unknown("render format", format_name, FORMATS)
    if resolved.needs_generated_model:
        name = resolved.profile.name
        raise UsageError(
            f"`{name}` serves a generated model, which the files have to point at",
            hint="make it with `python -m runtime.tiny --out DIR`, then pass `--model DIR`",
        )
    site = site or Site()
    kubernetes_ = format_name == "kubernetes"
    safe.check(resolved, site.directory, site.image, kubernetes=kubernetes_)
    site = replace(site, keys=safe.keys(resolved, open_=kubernetes_))
    return FORMATS[format_name](safe.without_keys(resolved), site)
