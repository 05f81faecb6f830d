"""Writes what a bundle showed into a profile's file, and leaves every other line as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from k3ctl.errors import UsageError

if TYPE_CHECKING:
    from k3ctl.profiles.schema import Profile, Validation

_STATUS = re.compile(r"^status:.*$", re.M)
_BLOCK = re.compile(r"^validation:.*\n(?:(?:[ \t].*)?\n)*", re.M)


def write(profile: Profile, validation: Validation) -> None:
    """Set ``status: validated`` and ``validation`` in the profile's own file.

    Raises:
        UsageError: the file cannot be written, or would not be that profile any more.
    """
    path = Path(profile.file)
    try:
        before = path.read_text(encoding="utf-8")
        after = marked(before, validation)
        scratch = path.with_name(f".{path.stem}.marking.yaml")
        scratch.write_text(after, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise UsageError(
            f"`{path}` cannot be written: {error.strerror}",
            hint="copy the profile into a directory of your own (`k3ctl profiles list --json` names them)",
        ) from error
    _read_again(path, before)


def marked(text: str, validation: Validation) -> str:
    """The profile's text with the status and the receipt."""
    import yaml

    block = yaml.safe_dump(
        {"validation": validation.model_dump(mode="json")}, sort_keys=False, allow_unicode=True, width=110
    )
    bare = _BLOCK.sub("", text)
    named = _STATUS.sub("status: validated", bare, count=1)
    return f"{named.rstrip()}\n{block}"


def _read_again(path: Path, before: str) -> None:
    """What was written must be read as what was meant; else the file is as it was."""
    from k3ctl.profiles import loader

    try:
        if loader.load(str(path)).status == "validated":
            return
        reason = "its status is written in a way that is not understood"
    except UsageError as error:
        reason = error.message
    path.write_text(before, encoding="utf-8")
    raise UsageError(f"`{path}` could not be marked, it is as it was: {reason}")
