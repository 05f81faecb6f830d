"""Does a bundle show that a profile is valid? Pure, but for ``of_bundle``.

What it must show: this very profile, as it is now and without overrides, on the hardware and vLLM that it requires,
with every check of the tiers ``canary`` and ``features`` finished, none failed, void or unknown, and those of
``ESSENTIAL`` passed. What could not be run there is named in the receipt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from k3ctl.bundle import seal, verify
from k3ctl.deployment import CPU
from k3ctl.errors import K3Error
from k3ctl.loadtest import conditions
from k3ctl.profiles.schema import Profile, Validation, meaning
from k3ctl.validate import tiers
from k3ctl.validate.bundle import VALIDATION

TIERS = ("canary", "features")
ESSENTIAL = (
    "canary.answered-here", "canary.floods", "canary.repeat-prefix", "canary.sampling", "features.sampling.temperature",
    "features.seeds", "features.stop-strings", "features.logprobs.told", "features.logprobs.rescored", "features.abort",
    "features.batch.1", "features.streaming.completion", "features.streaming.chat", "features.context.longest",
)  # fmt: skip
OF_TRAINED = ("canary.answers", "features.needle.10", "features.needle.50", "features.needle.90")
"""Essential where the weights are not random."""
OVERRIDES = frozenset({"flag", "env"})


def of_bundle(directory: Path, profile: Profile) -> Validation:
    """The receipt of a bundle directory.

    Raises:
        UsageError: no bundle of a validation.
        K3Error: it does not verify, or does not show the profile; every reason is named.
    """
    summary = verify.verified_summary(directory, VALIDATION)
    records = {}
    for key in summary["servers"]:
        path = directory / "servers" / key / "engine.json"
        records[key] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    key, reasons = server_of(summary, records, profile)
    if key is not None:
        reasons += shortcomings(summary, key, records[key], profile)
    if key is None or reasons:
        raise K3Error(f"`{directory.name}` does not show that `{profile.name}` is valid", reasons=reasons)
    return made(summary, key, profile, bundle=directory.name, sums=seal.digest(directory / seal.SUMS))


def server_of(
    summary: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]], profile: Profile
) -> tuple[str | None, list[str]]:
    """The server that ran this very profile, and why there is none."""
    reasons = []
    for key in summary["servers"]:
        kept = (records[key].get("launch") or {}).get("profile") or {}
        if not kept.get("data"):
            reasons.append(f"server {key}: k3ctl did not start it, so its profile is not known")
        elif kept.get("name") != profile.name:
            reasons.append(f"server {key} ran the profile `{kept.get('name')}`")
        elif meaning(kept["data"]) != profile.meaning:
            reasons.append(f"server {key} ran `{profile.name}` as it was before it was changed")
        else:
            return key, []
    return None, reasons or ["it holds no server"]


def shortcomings(
    summary: Mapping[str, Any], key: str, record: Mapping[str, Any], profile: Profile
) -> list[str]:
    """What the server's part of a bundle lacks; empty when it shows the profile."""
    facts = summary["servers"][key]
    results = {r["check"]: r for r in summary["results"] if r["server"] == key}
    return [*_overridden(record), *_elsewhere(facts, profile), *_unshown(results, facts)]


def made(summary: Mapping[str, Any], key: str, profile: Profile, *, bundle: str, sums: str) -> Validation:
    """The receipt."""
    facts = summary["servers"][key]
    results = [r for r in summary["results"] if r["server"] == key]
    return Validation(
        bundle=bundle,
        sums=sums,
        profile=profile.meaning,
        gpu=str(facts["gpu"]),
        gpus=int(facts["gpus"]),
        vllm=str(facts["vllm"]),
        runtime=str(facts["runtime"]),
        when=time.strftime("%Y-%m-%d", time.gmtime(summary["ended_at"])),
        checks_passed=sum(r["outcome"] == "passed" for r in results),
        not_shown=tuple(f"{r['check']}: {r['statement']}" for r in results if r["outcome"] == "not run"),
    )


def _overridden(record: Mapping[str, Any]) -> Iterator[str]:
    """A value that was typed or exported is not the profile's, but for where the server listens."""
    for name, origin in ((record.get("launch") or {}).get("origins") or {}).items():
        plain = name.removeprefix("env.")
        place = plain.partition(".")[0] in conditions.ELSEWHERE or plain.endswith(conditions.NOWHERE)
        if origin and origin[0] in OVERRIDES and not place:
            yield f"`{name}` was overridden ({origin[-1]}): that is not what the profile starts"


def _elsewhere(facts: Mapping[str, Any], profile: Profile) -> Iterator[str]:
    requires = profile.requires
    wanted: Sequence[str] = requires.gpu if requires.gpus else (CPU,)
    if facts.get("gpu") not in wanted:
        yield f"it ran on {facts.get('gpu') or 'hardware that is not known'}, the profile is for {'/'.join(wanted)}"
    if requires.gpus and facts.get("gpus") != requires.gpus:
        yield f"it ran on {facts.get('gpus')} GPUs, the profile is for {requires.gpus}"
    try:
        fits = Version(str(facts.get("vllm"))) in SpecifierSet(requires.vllm, prereleases=True)
    except InvalidVersion:
        fits = False
    if not fits:
        yield f"it ran vLLM {facts.get('vllm') or '(not known)'}, the profile wants {requires.vllm}"


def _unshown(results: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> Iterator[str]:
    if missing := [check.name for check in tiers.checks(TIERS) if check.name not in results]:
        yield f"{len(missing)} checks of the tiers {' and '.join(TIERS)} are missing, {missing[0]} the first"
    for name, result in results.items():
        if result["outcome"] in {"failed", "void", "unknown"}:
            yield f"{name} is {result['outcome']}: {result['statement']}"
    essential = ESSENTIAL if facts.get("random_weights") else (*ESSENTIAL, *OF_TRAINED)
    for name in essential:
        if name in results and results[name]["outcome"] == "not run":
            yield f"{name} could not be run, and without it nothing is valid: {results[name]['statement']}"
