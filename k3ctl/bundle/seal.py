"""Hashes of a bundle: ``SHA256SUMS`` over every file, and an unsigned in-toto statement over it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
STATEMENT = "statement.intoto.json"
PREDICATE_TYPE = "urn:k3ctl:bundle:1"


def files(directory: Path) -> list[Path]:
    """Every regular file except the seal itself, sorted by relative path."""
    found = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(
        (path for path in found if str(path.relative_to(directory)) not in (SUMS, STATEMENT)),
        key=lambda path: path.relative_to(directory).as_posix(),
    )


def sums(directory: Path) -> str:
    """The text of ``SHA256SUMS`` as it should be, in the format of ``sha256sum``."""
    return "".join(f"{digest(path)}  {path.relative_to(directory).as_posix()}\n" for path in files(directory))


def statement(sums_text: str, manifest: Mapping[str, Any]) -> str:
    """The in-toto statement (v1) over ``SHA256SUMS``; sign it with cosign or any DSSE tool."""
    stated = ("schema", "id", "preset", "tiers", "model", "deployment", "servers", "validity")
    predicate = {name: manifest[name] for name in stated if name in manifest}
    subject = {"name": SUMS, "digest": {"sha256": hashlib.sha256(sums_text.encode()).hexdigest()}}
    value = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [subject],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def seal(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write both files."""
    text = sums(directory)
    (directory / SUMS).write_text(text, encoding="utf-8")
    (directory / STATEMENT).write_text(statement(text, manifest), encoding="utf-8")


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
