"""What ``k3ctl bench`` gathers around a run: the target, the baseline, the machine, the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl.errors import UsageError
from k3ctl.output import CommandResult, Table

if TYPE_CHECKING:
    from k3ctl.engine.rundir import Run
    from k3ctl.loadtest.target import Target
    from k3ctl.loadtest.workload import Workload


def seal(directory: Path, record: Run | None, before: Mapping[str, Any]) -> dict[str, Any]:
    """Make the result directory a bundle."""
    from k3ctl.bundle.parts import Surroundings
    from k3ctl.bundle.write import write

    return write(directory, Surroundings(record, before, hardware()))


def hardware() -> dict[str, Any]:
    """A ``k3ctl.nvml/1`` snapshot of this machine."""
    from k3ctl import gpus

    return gpus.to_json(gpus.snapshot())


def baseline(against: str | None) -> Mapping[str, Any] | str | None:
    """``published``, or the summary of a bundle: read before the load, so that a wrong path costs nothing."""
    if against is None or against == "published":
        return against
    from k3ctl.bundle import archive, verify

    with archive.opened(Path(against)) as directory:
        return verify.verified_summary(directory)


def comparison(summary: Mapping[str, Any], other: Mapping[str, Any] | str | None) -> list[str]:
    """Lines that put the result beside published numbers or a baseline; empty without one."""
    from k3ctl.loadtest import compare, view

    if other is None:
        return []
    if isinstance(other, str):
        pairs = compare.against_published(summary, compare.related(summary))
        return view.comparison(pairs) or [_nothing_published(summary)]
    pairs = compare.against_summary(summary, other, source="baseline", unit="output_tok_s")
    return view.comparison(pairs) or ["no valid row shares a concurrency with the baseline"]


def _nothing_published(summary: Mapping[str, Any]) -> str:
    asked = summary["asked"]
    lengths = f"{asked['prompt_tokens']} in, {asked['output_tokens']} out"
    return f"published numbers: none for {lengths} at a concurrency with a valid row"


def announce(load: Workload, target: Target) -> str:
    """What is about to run, and how long at most."""
    worst = load.worst_case_s()
    limit = "no time limit" if worst is None else f"at most {worst:.0f} s of load"
    if load.duration_s and load.warmup:
        limit += f", the first {load.warmup * load.duration_s:g} s of each step are warm-up"
    return (
        f"{load.preset} on {target.model} at {target.url}: c={','.join(map(str, load.concurrency))}, {limit}"
    )


def listing() -> CommandResult:
    """The presets as a table."""
    from k3ctl.loadtest import workload

    loads = [workload.load(name) for name in workload.names()]
    table = Table(
        ("preset", "c", "what"), [[w.preset, ",".join(map(str, w.concurrency)), w.summary] for w in loads]
    )
    return CommandResult("k3ctl.presets/1", {"presets": [w.as_dict() for w in loads]}, [table])


def target(
    run: str | None,
    url: str | None,
    model: str | None,
    tokenizer: str | None,
    api_key: str | None = None,
) -> tuple[Run | None, Target]:
    """The server to load, and its run record when k3ctl started it."""
    from k3ctl.loadtest import target
    from k3ctl.server import which

    found = which.ready(which.one(url, run))
    if found.run is None or (url and tokenizer):
        return None, target.from_url(found.url, model=model, tokenizer=tokenizer, api_key=api_key)
    return found.run, target.from_run(found.run)


def usual(run: Run | None) -> tuple[str, ...]:
    """The presets of the profile that a server was started with.

    Raises:
        UsageError: it is not known which profile that is, or it names none.
    """
    from k3ctl.engine import record

    config = record.config(run) if run is not None else None
    hint = "`k3ctl bench --list` shows the presets"
    if config is None:
        raise UsageError(
            "name a preset: it is not known with which profile this server was started", hint=hint
        )
    if not config.profile.bench.presets:
        raise UsageError(f"name a preset: profile `{config.profile.name}` has none of its own", hint=hint)
    return config.profile.bench.presets


def numbers(text: str | None) -> tuple[int, ...] | None:
    """``1,4,16`` as a tuple; None stays None. Raises ``UsageError``."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"`--concurrency {text}` is not a list of numbers", hint="for example --concurrency 1,4,16"
        ) from None
