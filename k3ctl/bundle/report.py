"""A bundle as Markdown: the table and the conditions that a reviewer of a pull request needs. Pure after ``load``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.bundle import verify
from k3ctl.deployment import CPU
from k3ctl.errors import UsageError
from k3ctl.loadtest import compare, view
from k3ctl.loadtest import events as ev

ALL = (*view.THROUGHPUT[:-1], *view.LATENCY[1:], *view.ENERGY[1:], "verdict")


@dataclass(frozen=True)
class Loaded:
    """What a report is made of."""

    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    events: Sequence[ev.Event]
    verified: bool
    """Whether every check of the bundle passed at the time of rendering."""


def load(directory: Path) -> Loaded:
    """Read a bundle directory; a damaged one is rendered with a warning on top.

    Raises:
        UsageError: it is no bundle.
    """
    checks = verify.verify(directory)
    return Loaded(
        manifest=verify.manifest(directory),
        summary=verify.json_of(directory / "summary.json"),
        events=ev.read(directory / "raw" / "events.jsonl"),
        verified=verify.passed(checks),
    )


def rendering(make: Callable[[Loaded], str]) -> Callable[[Loaded], str]:
    """A renderer that refuses a damaged bundle with one error where it cannot show it."""

    @functools.wraps(make)
    def rendered(loaded: Loaded) -> str:
        try:
            return make(loaded)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if loaded.verified:
                raise
            raise UsageError(
                "the bundle is too damaged to be shown", hint="`k3ctl bundle verify` says what was changed"
            ) from error

    return rendered


@rendering
def markdown(loaded: Loaded) -> str:
    """The report: title, conditions, table, findings, comparison with published numbers."""
    parts = [
        f"### {title(loaded)}",
        "",
        *conditions(loaded),
        "",
        *_table(*view.table(loaded.summary, ALL)),
    ]
    parts += ["", *(f"- {line}" for line in view.findings(loaded.summary))]
    pairs = compare.against_published(loaded.summary, compare.related(loaded.summary))
    if pairs:
        parts += ["", "Against published numbers:", "", *(f"- {line}" for line in view.comparison(pairs))]
    return "\n".join(parts).rstrip() + "\n"


def title(loaded: Loaded) -> str:
    """The summary's title, with a warning when the bundle does not verify."""
    return ("" if loaded.verified else "DOES NOT VERIFY · ") + view.title(loaded.summary)


def conditions(loaded: Loaded) -> list[str]:
    """Where and how it was measured."""
    deployment, manifest = loaded.summary["deployment"], loaded.manifest
    known = {
        "GPU": deployment["gpu"],
        "GPUs": None if deployment["gpu"] == CPU else deployment["gpus"],
        "TP": deployment["tensor_parallel_size"],
        "decode backend": deployment["decode_backend"],
        "K": deployment["num_speculative_tokens"],
        "acceptance": deployment["acceptance"],
        "prefix caching": deployment["prefix_caching"],
        "profile": deployment["profile"],
        "vLLM": deployment["vllm"],
        "client": loaded.summary["client"]["tool"],
        "k3ctl": manifest["k3ctl"],
        "seed": manifest["seed"],
    }
    line = " · ".join(f"{name} {value}" for name, value in known.items() if value is not None)
    status = manifest["validity"]["status"]
    flags = ", ".join(manifest["validity"]["flags"]) or "none"
    return [line, "", f"Validity: **{status}**, flags: {flags}. Bundle `{manifest['id']}`."]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join('---:' for _ in columns)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]
