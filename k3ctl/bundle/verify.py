"""Check a bundle: every byte against the seal, the seal against itself, the summary against the raw files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl import files
from k3ctl.bundle import seal
from k3ctl.bundle.kind import Kind
from k3ctl.bundle.write import BENCH
from k3ctl.errors import K3Error, UsageError

DAMAGE = (
    K3Error,
    OSError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What files of another shape than ours can cause: a red check, never a traceback."""
MAX_JSON_BYTES = 64 << 20
"""Longest manifest or summary."""


@dataclass(frozen=True)
class Check:
    """One check. ``detail`` says what is wrong, or what was checked."""

    name: str
    ok: bool
    detail: str


def kind_of(directory: Path, kinds: Sequence[Kind]) -> Kind:
    """The kind that the manifest names; the first one where it names none of them, so that verifying says so."""
    try:
        schema = json_of(directory / "manifest.json").get("schema")
    except K3Error:
        schema = None
    return next((kind for kind in kinds if kind.schema == schema), kinds[0])


def verify(directory: Path, kind: Kind = BENCH) -> list[Check]:
    """Every check of a bundle directory of that kind.

    Raises:
        UsageError: the directory is no bundle at all.
    """
    if not (directory / "manifest.json").exists() and not (directory / seal.SUMS).exists():
        raise UsageError(
            f"`{directory}` is not a bundle", hint="expected a directory with manifest.json and SHA256SUMS"
        )
    return [
        _files(directory),
        _statement(directory, kind),
        _manifest(directory, kind),
        _summary(directory, kind),
    ]


def passed(checks: list[Check]) -> bool:
    """Whether every check is green."""
    return all(check.ok for check in checks)


def verified_summary(directory: Path, kind: Kind = BENCH) -> dict[str, Any]:
    """The summary of a bundle that passes every check.

    Raises:
        UsageError: no bundle.
        K3Error: it does not verify.
    """
    bad = [check for check in verify(directory, kind) if not check.ok]
    if bad:
        raise K3Error(
            f"`{directory.name}` does not verify", reasons=[f"{check.name}: {check.detail}" for check in bad]
        )
    return json_of(directory / "summary.json")


def manifest(directory: Path, kind: Kind = BENCH) -> dict[str, Any]:
    """The manifest of a bundle.

    Raises:
        UsageError: missing, damaged, or of another version.
    """
    value = json_of(directory / "manifest.json")
    if value.get("schema") != kind.schema:
        raise UsageError(
            f"`{directory}` is not a {kind.schema} bundle", hint=f"its schema is `{value.get('schema')}`"
        )
    return value


def _files(directory: Path) -> Check:
    try:
        listed = dict(_listed(_text(directory / seal.SUMS)))
    except (ValueError, K3Error) as error:
        return Check("files", False, f"{seal.SUMS} cannot be read: {error}")
    present = {path.relative_to(directory).as_posix(): path for path in seal.files(directory)}
    problems = [f"{name} is missing" for name in listed if name not in present]
    problems += [f"{name} is not listed" for name in present if name not in listed]
    problems += [
        f"{name} was changed"
        for name, path in present.items()
        if name in listed and seal.digest(path) != listed[name]
    ]
    links = [path for path in directory.rglob("*") if path.is_symlink()]
    problems += [f"{path.relative_to(directory).as_posix()} is a link" for path in links]
    return Check(
        "files", not problems, "; ".join(sorted(problems)) or f"{len(present)} files match {seal.SUMS}"
    )


def _listed(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64:
            raise ValueError(f"not a checksum line: {line[:40]!r}")
        yield name, digest


def _statement(directory: Path, kind: Kind) -> Check:
    """The statement must be, byte for byte, the one that follows from ``SHA256SUMS`` and the manifest."""
    try:
        expected = seal.statement(_text(directory / seal.SUMS), manifest(directory, kind))
        found = files.read(directory / seal.STATEMENT, MAX_JSON_BYTES)
    except DAMAGE as error:
        return Check("statement", False, f"{seal.STATEMENT}: {error}")
    ok = found == expected.encode()
    return Check(
        "statement", ok, "covers SHA256SUMS" if ok else "does not follow from SHA256SUMS and the manifest"
    )


def _manifest(directory: Path, kind: Kind) -> Check:
    try:
        found = manifest(directory, kind)
        computed = kind.validity(json_of(directory / "summary.json"))
        stated = dict(found.get("validity") or {})
    except DAMAGE as error:
        return Check("manifest", False, str(error))
    ok = stated.get("status") == computed["status"] and stated.get("reasons") == computed["reasons"]
    text = (
        f"validity: {computed['status']}"
        if ok
        else f"says {stated.get('status')}, the summary says {computed['status']}"
    )
    return Check("manifest", ok, text)


def _summary(directory: Path, kind: Kind) -> Check:
    try:
        stored = json_of(directory / "summary.json")
        # through JSON once, as the stored one went
        computed = json.loads(json.dumps(kind.summarize(directory / "raw"), default=list))
    except DAMAGE as error:
        return Check("summary", False, f"cannot be recomputed: {error}")
    different = sorted(name for name in {*stored, *computed} if stored.get(name) != computed.get(name))
    return Check(
        "summary",
        not different,
        f"differs in: {', '.join(different)}" if different else "recomputed from raw/",
    )


def _text(path: Path) -> str:
    return files.text(path, MAX_JSON_BYTES)


def json_of(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a bundle. Raises UsageError."""
    try:
        value = json.loads(files.read(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"`{path.name}` cannot be read: {files.reason(error)}") from error
    if not isinstance(value, Mapping):
        raise UsageError(f"`{path.name}` is not a JSON object")
    return dict(value)
