"""``k3ctl bench mlperf [FOLDER]…``: what MLPerf Endpoints' rules say of a server, a curve and the runs on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl.errors import ExitCode, UsageError
from k3ctl.output import Block, CommandResult, Lines, Table

if TYPE_CHECKING:
    from k3ctl.loadtest.mlperf.folder import Folder
    from k3ctl.loadtest.mlperf.rules import Served, Standing

SCHEMA = "k3ctl.bench-mlperf/1"
DRAFT = "the rules are a draft, read 2026-11-30: check them at their sources before a run"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Asked:
    """What the user typed: run folders, the server, the planned curve, the data set, where point files go."""

    folders: Sequence[Path]
    run: str | None
    url: str | None
    model: str | None
    concurrency: tuple[int, ...] | None
    dataset: Path | None
    out: Path | None


def mlperf(asked: Asked) -> CommandResult:
    """Judge, and write a point file per concurrency unless a rule refuses. Exit 1 unless every rule is met."""
    from k3ctl.facts.mlperf import kimi_k3
    from k3ctl.loadtest.mlperf import folder, points, rules

    if asked.out is not None and asked.out.exists():
        raise UsageError(f"`{asked.out}` exists already", hint="choose another --out, nothing is overwritten")
    digest = _digest(asked.dataset)
    folders = [folder.read(path) for path in asked.folders]
    planned = _points(asked.concurrency, folders)
    served, model, url = _server(asked)
    standings = rules.judge(served, planned, digest, folders)
    words = [one.word for one in standings]
    refused = words.count(rules.REFUSED)
    by_point = {one.concurrency: one for one in folders}
    made = (
        [] if refused else [points.point(c, planned, served, by_point.get(c)) for c in sorted(set(planned))]
    )
    written = _write(asked.out, made, None if folders else (model, url)) if asked.out and made else []
    needed = points.needed(made, folders)
    data = {
        "standings": [asdict(one) for one in standings],
        "points": made,
        "needed": needed,
        "written": written,
        "sources": dict(kimi_k3().sources),
    }
    good = all(word == rules.MET for word in words)
    text = _told(standings, refused, needed, written)
    return CommandResult(SCHEMA, data, text, ExitCode.OK if good else ExitCode.FAILED)


def _points(typed: tuple[int, ...] | None, folders: Sequence[Folder]) -> list[int]:
    """The concurrencies of the folders, or those that were typed; both only when they agree."""
    from_folders = [c for one in folders if (c := one.concurrency) is not None]
    if typed is not None and any(c < 1 for c in typed):
        raise UsageError("--concurrency must be positive")
    if typed is not None and folders and sorted(typed) != sorted(from_folders):
        raise UsageError(
            "--concurrency and the run folders disagree",
            reasons=[f"the folders are at {', '.join(map(str, sorted(from_folders))) or 'no concurrency'}"],
            hint="leave --concurrency out",
        )
    return from_folders or list(typed or ())


def _server(asked: Asked) -> tuple[Served, str, str]:
    """The server; run folders alone need none."""
    from k3ctl.loadtest.mlperf import served
    from k3ctl.loadtest.mlperf.rules import Served
    from k3ctl.server import which

    if asked.folders and asked.run is None and asked.url is None:
        return Served(), "", ""
    found = which.ready(which.one(asked.url, asked.run))
    name = asked.model or (found.run.served_model_name if found.run else "moonshotai/Kimi-K3")
    return served.of_run(found.run), name, found.url


def _digest(dataset: Path | None) -> str | None:
    if dataset is None:
        return None
    sha = hashlib.sha256()
    try:
        if not dataset.is_file():
            raise UsageError(f"no data set `{dataset}`", hint="--dataset takes the JSONL file")
        with dataset.open("rb") as file:
            while chunk := file.read(CHUNK):
                sha.update(chunk)
    except OSError as error:
        raise UsageError(f"`{dataset}` cannot be read: {error.strerror or error}") from error
    return sha.hexdigest()


def _write(out: Path, made: Sequence[Mapping[str, Any]], server: tuple[str, str] | None) -> list[str]:
    """``r<N>/point.yaml`` per point; with ``server`` (model, URL) also the client's configuration for the run."""
    import yaml

    from k3ctl.loadtest.mlperf import points

    written = []
    for one in made:
        directory = out / f"r{one['concurrency']}"
        documents: dict[str, Mapping[str, Any]] = {"point.yaml": one}
        if server is not None:
            documents["client.yaml"] = points.client_config(one["concurrency"], *server)
        try:
            directory.mkdir(parents=True)
            for name, document in documents.items():
                text = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
                (directory / name).write_text(text, encoding="utf-8")
                written.append(str(directory / name))
        except OSError as error:
            raise UsageError(f"`{directory}` cannot be written: {error.strerror or error}") from error
    return written


def _told(
    standings: Sequence[Standing], refused: int, needed: Sequence[str], written: Sequence[str]
) -> list[Block]:
    order = ("refused", "unknown", "flagged", "met")
    listed = sorted(standings, key=lambda one: order.index(one.word))
    rows = [
        [one.word.upper() if one.word == "refused" else one.word, one.about, one.rule, one.text]
        for one in listed
    ]
    lines = [f"{refused} of {len(standings)} rules refuse: no point file"] if refused else []
    lines += [f"wrote {name}" for name in written]
    lines += ["", "a full submission still needs:", *(f"  {text}" for text in needed), "", DRAFT]
    columns = ("", "of", "rule", "what was found")
    return [Table(columns, rows, "MLPerf Endpoints v1.0, Kimi K3 agentic"), Lines(lines)]
