"""What to send: a preset file, plus what the user typed, becomes one immutable ``Workload``.

A preset is data (``presets/*.yaml`` or a user's file). Every override is applied in one place and leaves a
sentence in ``deviations``, so that a result always says how it differs from the preset it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl import files, yamls
from k3ctl.errors import UsageError, nearest, unknown

if TYPE_CHECKING:
    from k3ctl.loadtest.schema import PresetFile


MAX_BYTES = 1 << 20
"""Longest preset file."""


@dataclass(frozen=True)
class Sessions:
    """Shape of generated agent sessions (token counts are requested lengths, pauses in seconds)."""

    count: int
    turns: int
    system_tokens: int
    user_tokens: int
    tool_result_tokens: int
    output_tokens: int
    pause_s: float
    subagent_turns: int


@dataclass(frozen=True)
class Expectations:
    """Server conditions under which the preset's published number was measured; None: not stated."""

    num_speculative_tokens: int | None = None
    acceptance: str | None = None
    synthetic_acceptance_length: float | None = None
    prefix_caching: bool | None = None


@dataclass(frozen=True)
class Workload:
    """A fully resolved workload. Times in seconds, lengths in tokens, shares in 0..1."""

    preset: str
    summary: str
    source: str | None
    driver: str
    prompt_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]
    duration_s: float | None
    requests: int | None
    warmup: float
    cooldown: float
    seed: int
    max_errors: int | None
    sample_size: int | None
    prefix_tokens: int | None = None
    prefix_count: int | None = None
    request_format: str = "/v1/chat/completions"
    timeout_s: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    sessions: Sessions | None = None
    expects: Expectations = Expectations()
    anchors: tuple[str, ...] = ()
    waive: Mapping[str, str] = field(default_factory=dict)
    client_env: Mapping[str, str] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form, the inverse of ``from_dict``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Workload:
        """Rebuild from ``as_dict``'s JSON."""
        values = dict(data)
        for name in ("concurrency", "anchors", "deviations"):
            values[name] = tuple(values[name])
        values["expects"] = Expectations(**values["expects"])
        if values["sessions"] is not None:
            values["sessions"] = Sessions(**values["sessions"])
        return cls(**values)

    def changed(self, note: str, **changes: Any) -> Workload:
        """A copy with ``changes``, and the sentence that says what differs from the preset."""
        return replace(self, **changes, deviations=(*self.deviations, note))

    def worst_case_s(self) -> float | None:
        """Longest time that the load itself can run, in seconds; None when only a request count bounds it."""
        return None if self.duration_s is None else self.duration_s * len(self.concurrency)


def names() -> list[str]:
    """Names of the presets that come with k3ctl."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in _builtin().iterdir() if entry.name.endswith(".yaml")
    )


def load(name_or_path: str) -> Workload:
    """A built-in preset by name, or a user's preset file by path (anything with a ``/`` or ``.yaml``).

    Raises ``UsageError`` for an unknown name, an unreadable file, or a key or value that the schema refuses.
    """
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        if not path.is_file():
            raise UsageError(
                f"preset file `{path}` does not exist", hint="`k3ctl bench --list` shows the presets"
            )
        text, origin = files.text(path, MAX_BYTES, "preset file"), str(path)
    elif name_or_path in names():
        text, origin = (
            (_builtin() / f"{name_or_path}.yaml").read_text(encoding="utf-8"),
            f"{name_or_path}.yaml",
        )
    else:
        raise unknown("preset", name_or_path, names())
    return _from_file(_validate(yamls.load(text, origin), origin))


def override(
    workload: Workload,
    *,
    concurrency: tuple[int, ...] | None = None,
    duration_s: float | None = None,
    requests: int | None = None,
    sessions: int | None = None,
) -> Workload:
    """Apply what the user typed; each change is recorded in ``deviations``.

    ``requests`` alone replaces the preset's time limit, because a step ends at whichever limit comes first.
    """
    changes: dict[str, Any] = {}
    notes: list[str] = []
    if concurrency is not None and concurrency != workload.concurrency:
        changes["concurrency"] = concurrency
        notes.append(f"concurrency {_commas(concurrency)} (preset: {_commas(workload.concurrency)})")
    if duration_s is not None and duration_s != workload.duration_s:
        changes["duration_s"] = duration_s
        notes.append(f"duration {duration_s:g} s (preset: {_seconds(workload.duration_s)})")
    if requests is not None and requests != workload.requests:
        changes["requests"] = requests
        notes.append(f"{requests} requests per step (preset: {workload.requests or 'no count'})")
        if duration_s is None and workload.duration_s is not None:
            changes["duration_s"] = None
            notes.append(f"no time limit (preset: {_seconds(workload.duration_s)})")
    if sessions is not None:
        if workload.sessions is None:
            raise UsageError(
                f"preset `{workload.preset}` replays no sessions", hint="--sessions goes with `agentic`"
            )
        changes["sessions"] = replace(workload.sessions, count=sessions)
        notes.append(f"{sessions} sessions (preset: {workload.sessions.count})")
    _check_positive(concurrency=concurrency, duration=duration_s, requests=requests, sessions=sessions)
    return replace(workload, **changes, deviations=workload.deviations + tuple(notes))


def _check_positive(**limits: Any) -> None:
    bad = [
        f"{name} {value:g}"
        for name, values in limits.items()
        for value in (values if isinstance(values, tuple) else (values,))
        if value is not None and value <= 0
    ]
    if bad:
        raise UsageError(f"must be positive: {', '.join(bad)}")


def _commas(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _seconds(value: float | None) -> str:
    return "no limit" if value is None else f"{value:g} s"


def _builtin() -> Any:
    return resources.files("k3ctl.loadtest") / "presets"


def _validate(data: Any, origin: str) -> PresetFile:
    from pydantic import ValidationError

    from k3ctl.loadtest.schema import PresetFile, known_keys

    if not isinstance(data, dict):
        raise UsageError(
            f"{origin}: a preset is a mapping of keys", hint="docs/how-to/bench.md shows one to start from"
        )
    try:
        return PresetFile.model_validate(data)
    except ValidationError as error:
        reasons = []
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            close = (
                nearest(str(problem["loc"][-1]), known_keys())
                if problem["type"] == "extra_forbidden"
                else None
            )
            reasons.append(f"{where}: {problem['msg']}" + (f"; did you mean `{close}`?" if close else ""))
        raise UsageError(f"{origin}: not a valid preset", reasons=reasons) from error


def _from_file(preset: PresetFile) -> Workload:
    load_, request = preset.load, preset.request
    return Workload(
        preset=preset.name,
        summary=preset.summary,
        source=preset.source,
        driver=preset.driver,
        prompt_tokens=load_.prompt_tokens,
        output_tokens=load_.output_tokens,
        concurrency=tuple(load_.concurrency),
        duration_s=load_.duration_s,
        requests=load_.requests,
        warmup=load_.warmup,
        cooldown=load_.cooldown,
        seed=load_.seed,
        max_errors=load_.max_errors,
        sample_size=load_.sample_size,
        prefix_tokens=load_.prefix_tokens,
        prefix_count=load_.prefix_count,
        request_format=request.format,
        timeout_s=request.timeout_s,
        body=dict(request.body),
        sessions=Sessions(**preset.sessions.model_dump()) if preset.sessions else None,
        expects=Expectations(**preset.expects.model_dump()),
        anchors=tuple(preset.anchors),
        waive=dict(preset.waive),
        client_env=dict(preset.client_env),
    )
