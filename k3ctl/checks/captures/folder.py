"""A folder of captures: files directly in it are one host, every subfolder is another.

Files are recognised by what is in them, not by their names. One that cannot be used becomes one line; the
rest of the report still appears.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from k3ctl import files
from k3ctl.checks import merge
from k3ctl.checks.captures import hosts, smi, topology
from k3ctl.checks.captures.partial import Partial, about_host, assemble
from k3ctl.checks.captures.words import plain
from k3ctl.checks.merge import Gathered
from k3ctl.errors import UsageError
from k3ctl.host import imex_domain, kernel_log
from k3ctl.machine.record import Machine

MAX_BYTES = 16 * 1024 * 1024
MAX_FILES = 500
MAX_FAILURE = 2000
"""Characters; the whole output of a command that failed is shorter."""


def read_folder(path: Path) -> Gathered:
    """Everything under ``path`` (or the one file it names); raises UsageError when nothing can be used."""
    if not path.exists():
        raise UsageError(f"`{path}` does not exist")
    parts, notes = [], []
    for name, found in _listed(path):
        captures = []
        for file in found:
            try:
                part = read_file(file)
            except (UsageError, ValueError, OSError) as error:
                notes.append(f"{file.name}: {getattr(error, 'message', None) or files.reason(error)}")
                continue
            if isinstance(part, Gathered):
                parts.append(part)
            else:
                captures.append(part)
                notes += [f"{file.name}: {note}" for note in part.notes]
        if captures:
            node, host = assemble(name, captures)
            parts.append(Gathered((Machine(node, host),)))
    if not parts:
        raise UsageError(f"`{path}` holds no capture that can be used", reasons=notes)
    return merge.combine(parts, notes)


def _listed(path: Path) -> list[tuple[str, list[Path]]]:
    """Host names and their files. Raises UsageError for a folder that cannot be listed."""
    try:
        return _hosts(path)
    except OSError as error:
        raise UsageError(f"cannot list `{path}`: {files.reason(error)}") from error


def _hosts(path: Path) -> list[tuple[str, list[Path]]]:
    if not path.is_dir():
        return [(path.stem, [path])]
    out = [(path.resolve().name, _files(path))]
    out += [(folder.name, _files(folder)) for folder in sorted(path.iterdir()) if folder.is_dir()]
    return [(name, found) for name, found in out if found]


def _files(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_file())[:MAX_FILES]


def read_file(path: Path) -> Partial | Gathered:
    """One file. Raises ValueError with one line for a file that is none of the known captures."""
    text = plain(files.read(path, MAX_BYTES).decode(errors="replace"))
    if text.lstrip().startswith("{"):
        return _json(text, path.name)
    part = sniff(text)
    if part is None:
        raise ValueError(f"not a capture that k3ctl knows (begins with `{_first_line(text)}`)")
    return part


def _json(text: str, source: str) -> Partial | Gathered:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"broken JSON: {error}") from error
    if isinstance(data, dict) and "nodes" in data and "schema" not in data:
        return about_host(imex_domain=imex_domain.parse(text))
    return merge.parse(data, source=source)


def sniff(text: str) -> Partial | None:
    """The reading in ``text``, or None when it is no known capture."""
    for recognises, parse in _KINDS:
        if recognises(text):
            return parse(text)
    return None


def _is_imex(text: str) -> bool:
    return "Domain State:" in text or "Node #0" in text


def _imex(text: str) -> Partial:
    return about_host(imex_domain=imex_domain.parse(text))


def _is_failure(text: str) -> bool:
    return len(text) < MAX_FAILURE and smi.failure(text) is not None


def _failure(text: str) -> Partial:
    found = smi.failure(text)
    assert found is not None
    return found


def _is_kernel_log(text: str) -> bool:
    return "NVRM:" in text


def _kernel_log(text: str) -> Partial:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return about_host(xids=kernel_log.parse("\n".join(lines)))


def _transcript(text: str) -> Partial:
    return hosts.transcript(text, sniff)


_KINDS: tuple[tuple[Callable[[str], bool], Callable[[str], Partial]], ...] = (
    (hosts.looks_like_transcript, _transcript),
    (_is_failure, _failure),
    (hosts.looks_like_collect_env, hosts.collect_env),
    (smi.looks_like_query, smi.query),
    (_is_imex, _imex),
    (smi.looks_like_csv, smi.csv_query),
    (smi.looks_like_dcgm, smi.dcgm),
    (smi.looks_like_list, smi.listing),
    (topology.looks_like, topology.parse),
    (_is_kernel_log, _kernel_log),
    (hosts.looks_like_settings, hosts.settings),
)
"""Recognisers in order: the ones whose text may hold another's come first."""


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "an empty line")
    return "".join(c if c.isprintable() else "?" for c in line[:60])
