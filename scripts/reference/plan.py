"""The reference pages of profiles and plan rules."""

from __future__ import annotations

import json
from collections.abc import Iterator

from k3ctl.planning.rules import ALL, Effect
from k3ctl.profiles.loader import load_all
from k3ctl.profiles.schema import OWNED, Profile

RULES_HEAD = """\
# Plan rules

`k3ctl plan` evaluates every rule below and reports all that fire, each with the nearest accepted alternative.
A rule outside its vLLM range does not fire. Rules marked *specialized* are evaluated when the specialized path
is asked for (`additional_config.decode_backend: latency_specialized`); for other profiles `plan` lists what
would stand against it.

The conditions that vLLM itself checks are compared with vLLM 0.33.0 over a table of configurations by a test;
`k3ctl plan PROFILE --check-with-vllm` does the same for one of yours. All others were found by reading vLLM's
code or in reports, and have not been tried on GPUs by us.
"""
PROFILES_HEAD = """\
# Profiles

A profile is a YAML file: one deployment of one model on one kind of hardware, for one goal. `k3ctl profiles list`
shows all, `k3ctl profiles show NAME --origin` says where every value of one comes from.

Your own profiles go into `$XDG_CONFIG_HOME/k3ctl/profiles` (`~/.config/k3ctl/profiles`), or into directories
listed in `K3CTL_PROFILES`; a profile there replaces a shipped one of the same name. `extends: NAME` takes another
profile as the base, one level deep: mappings merge, other values replace, `null` removes. Evidence is never
inherited.

Values are overridden with `--set KEY=VALUE` by vLLM's own argument names, dotted for fields of JSON arguments
(`speculative_config.num_speculative_tokens=3`), `env.NAME=VALUE` for a variable, and `none` to remove one.
Numbers are read as vLLM reads them: `16k` is 16,000, `16K` is 16,384. `K3CTL_SET` holds overrides for every call.
The strongest wins: flag, then the caller's environment, then the profile, then the default.

`status` says how far a profile can be trusted: *validated* was shown by a bundle of `k3ctl validate` on
that hardware, and is written by `k3ctl profiles mark-validated` alone; *supported* rests on named evidence;
*untested* was built and checked without hardware only. A validated profile whose values are changed is refused
until it is marked again.

The schema is in [profile.schema.json](profile.schema.json).
"""


def rules_page() -> str:
    """``plan-rules.md``."""
    return RULES_HEAD + "".join(_effect_section(effect) for effect in Effect)


def _effect_section(effect: Effect) -> str:
    rules = [rule for rule in ALL if rule.effect is effect]
    lines = [f"\n## {effect.value[0].upper()}{effect.value[1:]}\n\n{_meaning(effect)}\n\n"]
    lines.append(
        "| rule | condition | path | platform | vLLM | read | source |\n|---|---|---|---|---|---|---|\n"
    )
    for rule in rules:
        path = "specialized" if rule.specialized else "any"
        reason = f"<br>vLLM: “{rule.reason}”" if rule.reason else ""
        cells = [
            f"`{rule.id}`",
            rule.title + reason,
            path,
            rule.platform,
            f"`{rule.vllm}`",
            rule.date,
            rule.source,
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(lines)


def _meaning(effect: Effect) -> str:
    return {
        Effect.IMPOSSIBLE: "The hardware, the software or the memory does not allow it. Exit status 3.",
        Effect.REFUSED: "vLLM checks these itself, after loading has begun, and names only the first. Exit status 3.",
        Effect.FAILS: "Nothing stops these; they go wrong at the end of the load or while serving. Exit status 3.",
        Effect.STANDARD: "The server works, but some or all decode steps are not specialized.",
        Effect.COST: "Memory, speed or visibility is lost.",
    }[effect]


def profiles_page() -> str:
    """``profiles.md``."""
    return PROFILES_HEAD + "".join(_shipped()) + "".join(_owned())


def _shipped() -> Iterator[str]:
    yield "\n## Shipped profiles\n\n| profile | hardware | for | status | summary |\n|---|---|---|---|---|\n"
    profiles = load_all()
    for profile in profiles:
        requires = profile.requires
        hardware = f"{requires.gpus}× {'/'.join(requires.gpu)}" if requires.gpus else "CPU"
        yield f"| `{profile.name}` | {hardware} | {profile.goal} | {profile.status} | {profile.summary} |\n"
    for profile in profiles:
        yield f"\n### {profile.name}\n\n{profile.summary}.\n\n"
        for item in profile.evidence:
            details = " · ".join(
                t for t in (item.by, item.when, item.versions, item.conditions, item.link) if t
            )
            yield f"- evidence: {item.what} ({details})\n"
        for note in profile.notes:
            yield f"- note: {note}\n"
        for anchor in profile.expect.anchors:
            yield f"- published {anchor.id}: {anchor.result} ({anchor.conditions}; {anchor.source}, {anchor.when})\n"
        if profile.expect.kv_sequences:
            tokens = profile.expect.kv_sequence_tokens
            yield f"- predicted: {profile.expect.kv_sequences} sequences of {tokens:,} tokens fit (estimate)\n"


def _owned() -> Iterator[str]:
    yield "\n## Arguments that other parts of a profile decide\n\n"
    yield "They cannot stand in `serve.args`.\n\n| vLLM argument | set through |\n|---|---|\n"
    for name, place in OWNED.items():
        yield f"| `{name}` | {place} |\n"


def schema() -> str:
    """``profile.schema.json``."""
    return json.dumps(Profile.model_json_schema(), indent=2, ensure_ascii=False) + "\n"
