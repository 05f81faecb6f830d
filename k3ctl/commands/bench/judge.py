"""``k3ctl bench judge FILE…``: results of other clients under k3ctl's guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from k3ctl.commands.bench import parts
from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import Block, CommandResult, Lines, Table

UNSEEN = (
    "note: k3ctl did not see this run. The decode path, the deployment and the server's counters are not known, "
    "so only what the file itself holds was judged."
)


def judge(files: Sequence[Path], preset: str | None, other: Mapping[str, Any] | str | None) -> CommandResult:
    """Judge every file; exit 1 when a row of any is invalid, or a step is missing."""
    from k3ctl.loadtest import foreign

    if not files:
        raise UsageError("nothing to judge", hint="k3ctl bench judge FILE, for example guidellm.json")
    found = [foreign.judged(file, preset=preset) for file in files]
    blocks: list[Block] = []
    data = []
    for summary in found:
        lines = parts.comparison(summary, other)
        blocks += _blocks(summary, lines)
        data.append({**summary, "comparison": lines})
    sound = all(summary["valid"] and not summary["missing_steps"] for summary in found)
    return CommandResult(
        "k3ctl.bench-judge/1", {"results": data}, blocks, ExitCode.OK if sound else ExitCode.FAILED
    )


def _blocks(summary: Mapping[str, Any], lines: Sequence[str]) -> list[Block]:
    from k3ctl.loadtest import view

    tables: list[Block] = [
        Table(names, cells, title, frozenset(names) - view.TEXT_COLUMNS)
        for title, names, cells in view.tables(summary)
    ]
    where = summary["provenance"]
    file = f"file: {where['file']} ({summary['client']['tool']}, sha256 {where['sha256'][:12]}…)"
    return [*tables, Lines([*view.findings(summary), *lines, UNSEEN, file])]
