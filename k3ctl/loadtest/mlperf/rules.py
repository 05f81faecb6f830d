"""What MLPerf's rules say, one word per rule: met, flagged, refused or unknown. Pure.

*Refused*: the rules reject it, the whole submission or this point. *Flagged*: they let reviewers ask. *Unknown*: what
is needed to tell was not given, and unknown is no pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3ctl.facts.mlperf import Benchmark, kimi_k3
from k3ctl.loadtest.mlperf import curve
from k3ctl.loadtest.mlperf.folder import Folder, at, section

MET, FLAGGED, REFUSED, UNKNOWN = "met", "flagged", "refused", "unknown"
LOSSY = frozenset({"fly"})
"""vLLM 0.33.0's rejection methods that change what the model says (``config/speculative.py``)."""
EXACT = frozenset({"standard", "block"})
INLINE = "agentic_combined"
SWE_BENCH = "swe_bench"


@dataclass(frozen=True)
class Standing:
    """One rule's word. ``about``: server, curve, data set, or a run folder's name; ``source``: key of the facts."""

    about: str
    rule: str
    word: str
    text: str
    source: str


@dataclass(frozen=True)
class Served:
    """What is known of the server. ``model`` and ``drafter``: repository and revision, either None: not known.

    ``speculation``: the speculative configuration, empty without; None: not known. ``not_k3``: why the model cannot be
    Kimi K3, from its own configuration.
    """

    model: tuple[str | None, str | None] = (None, None)
    speculation: Mapping[str, Any] | None = None
    drafter: tuple[str | None, str | None] = (None, None)
    not_k3: str = ""


def judge(
    served: Served, points: Sequence[int], digest: str | None, folders: Sequence[Folder]
) -> list[Standing]:
    """Every rule that can be judged before or after the runs; ``digest``: SHA-256 of the data set, if it was given."""
    found = [*_server(served), *_curve(points), *_dataset(digest, folders)]
    for folder in folders:
        found += _folder(folder)
    return [*found, *_whole(folders, points)]


def _server(served: Served) -> Iterator[Standing]:
    facts = kimi_k3()
    if served.not_k3:
        yield Standing("server", "checkpoint", REFUSED, served.not_k3, "reference")
    else:
        yield _approved("checkpoint", served.model, facts.checkpoints)
    yield from _speculation(served, facts)


def _approved(rule: str, found: tuple[str | None, str | None], approved: Mapping[str, str]) -> Standing:
    name, revision = found
    if name is None:
        return Standing(
            "server", rule, UNKNOWN, "which repository it was loaded from is not known", "reference"
        )
    if name not in approved:
        return Standing(
            "server", rule, REFUSED, f"`{name}` is not approved ({', '.join(approved)})", "reference"
        )
    wanted = approved[name]
    if revision is None:
        return Standing(
            "server", rule, UNKNOWN, f"`{name}`: revision not known, {wanted[:12]} is", "reference"
        )
    if revision != wanted:
        text = f"`{name}` at {revision[:12]}, approved is {wanted[:12]}"
        return Standing("server", rule, REFUSED, text, "reference")
    return Standing("server", rule, MET, f"`{name}` at {wanted[:12]}", "reference")


def _speculation(served: Served, facts: Benchmark) -> Iterator[Standing]:
    spec = served.speculation
    if spec is None:
        yield Standing("server", "drafter", UNKNOWN, "whether it speculates is not known", "reference")
        yield Standing("server", "acceptance", UNKNOWN, "how it accepts drafts is not known", "rules")
        return
    if not spec:
        yield Standing("server", "drafter", MET, "no speculation", "reference")
        yield Standing("server", "acceptance", MET, "no speculation", "rules")
        return
    if served.drafter[0] is None and not spec.get("model"):
        text = f"method `{spec.get('method')}` has no approved head"
        yield Standing("server", "drafter", REFUSED, text, "reference")
    else:
        yield _approved("drafter", served.drafter, facts.drafters)
    how = str(spec.get("rejection_sample_method", "standard"))
    if how == "synthetic":
        text = "synthetic acceptance: the drafts that count are not those that the model would accept"
        yield Standing("server", "acceptance", REFUSED, text, "rules")
    elif how in LOSSY:
        yield Standing("server", "acceptance", REFUSED, f"`{how}` verification changes outputs", "rules")
    elif how in EXACT:
        yield Standing("server", "acceptance", MET, f"`{how}` verification", "rules")
    else:
        yield Standing("server", "acceptance", UNKNOWN, f"`{how}` verification is not known here", "rules")


def _curve(points: Sequence[int]) -> Iterator[Standing]:
    rule = kimi_k3().curve
    least, most, ultra = rule["least_points"], rule["most_points"], rule["ultra_low"]
    if not points:
        yield Standing("curve", "points", UNKNOWN, "no concurrencies were given", "requirements")
        return
    distinct = sorted(set(points))
    shown = ", ".join(map(str, distinct))
    word = MET if least <= len(distinct) <= most else REFUSED
    text = f"{len(distinct)} concurrencies ({shown}); {least} to {most} are needed"
    yield Standing("curve", "points", word, text, "requirements")
    if len(distinct) != len(points):
        yield Standing("curve", "points", REFUSED, "two points have the same concurrency", "rules")
    found = curve.regions(distinct)
    if found is None:
        text = f"needs a point at 1 to {ultra} and one above {ultra}, has {distinct[0]} to {distinct[-1]}"
        yield Standing("curve", "regions", REFUSED, text, "rules")
        return
    for name, (first, last) in found.bounds.items():
        inside = [c for c in distinct if first <= c <= last]
        text = f"{name} {first} to {last}: {', '.join(map(str, inside)) or 'no point'}"
        yield Standing("curve", "regions", MET if inside else REFUSED, text, "rules")


def _dataset(digest: str | None, folders: Sequence[Folder]) -> Iterator[Standing]:
    wanted = kimi_k3().dataset
    predefined = [folder for folder in folders if _is_predefined(folder)]
    if digest is not None:
        word = MET if digest == wanted["sha256"] else REFUSED
        text = f"SHA-256 {digest[:12]}…, the data set's is {wanted['sha256'][:12]}…"
        yield Standing("data set", "digest", word, text, "reference")
    elif folders and len(predefined) == len(folders):
        text = f"`{wanted['name']}`: the reference client checks its digest before it loads it"
        yield Standing("data set", "digest", MET, text, "reference")
    else:
        yield Standing("data set", "digest", UNKNOWN, "no data set was given (--dataset FILE)", "reference")


def _is_predefined(folder: Folder) -> bool:
    entry = folder.performance
    return str(entry.get("name", "")).split("::")[0] == kimi_k3().dataset["name"] and not entry.get("path")


def _folder(folder: Folder) -> Iterator[Standing]:
    name = folder.path.name
    for rule, word, text, source in (*_config(folder), *_result(folder)):
        yield Standing(name, rule, word, text, source)


Word = tuple[str, str, str, str]


def _config(folder: Folder) -> Iterator[Word]:
    facts, model = kimi_k3(), section(folder.config, "model_params")
    pattern = at(folder.config, "settings", "load_pattern", "type")
    yield _equal("load pattern", pattern, "agentic_inference", "rules")
    yield from (_equal(key, model.get(key), value, "reference") for key, value in facts.sampling.items())
    yield _equal("streaming", model.get("streaming"), "on", "requirements")
    extra = sorted(set(model) - set(facts.sampling) - {"name", "tokenizer_name", "streaming"})
    extra = [key for key in extra if model[key] is not None]
    text = f"other sampling or thinking settings: {', '.join(extra)}" if extra else "none besides"
    yield "sampling", REFUSED if extra else MET, text, "reference"
    replay = section(folder.performance, "agentic_inference")
    for key, value in (
        ("enable_salt", True),
        ("inject_tool_delay", True),
        ("stop_issuing_on_first_user_complete", False),
    ):
        yield _equal(key, replay.get(key), value, "reference")
    yield _trajectories(replay.get("num_trajectories_to_issue"))
    method = at(folder.performance, "accuracy_config", "eval_method")
    yield _equal("inline accuracy", method, "agentic_inference_inline", "reference")
    bench = folder.swe_bench
    yield _equal("SWE-bench", at(bench, "accuracy_config", "eval_method"), "swe_bench_scorer", "reference")
    extras = section(bench, "accuracy_config", "extras")
    yield _equal("SWE-bench tasks", extras.get("num_instances"), facts.gates["swe_bench_tasks"], "reference")
    if extras.get("swebench_template") is not None:
        yield "SWE-bench template", REFUSED, "must be left out for Kimi K3", "reference"


def _equal(rule: str, found: Any, wanted: Any, source: str) -> Word:
    if found is None:
        return rule, UNKNOWN, f"not in the folder's configuration; must be {wanted}", source
    same = found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
    # YAML 1.1 reads an unquoted `on` as true
    same = same or (wanted == "on" and found is True)
    return rule, MET if same else REFUSED, f"{found}" + ("" if same else f", must be {wanted}"), source


def _trajectories(found: Any) -> Word:
    size = kimi_k3().dataset["trajectories"]
    if not isinstance(found, int) or isinstance(found, bool):
        return "trajectories", UNKNOWN, f"not given; must be a multiple of {size}", "reference"
    good = found > 0 and found % size == 0
    return "trajectories", MET if good else REFUSED, f"{found}, must be a multiple of {size}", "reference"


def _result(folder: Folder) -> Iterator[Word]:
    facts = kimi_k3()
    if not folder.summary:
        yield "result", UNKNOWN, "the folder holds no performance result", "rules"
        return
    if not folder.complete:
        yield "result", UNKNOWN, "the client's sentinel is missing: did the run end by itself?", "rules"
    failed = folder.number("n_samples_failed")
    if failed:
        yield "failed samples", FLAGGED, f"{failed:.0f} samples failed", "rules"
    yield from _duration(folder)
    inline = folder.scores.get(INLINE, folder.scores.get(facts.dataset["name"]))
    yield _gate("inline accuracy score", inline, facts.gates["inline_percent"])
    yield _length(folder.number("output_sequence_lengths_full_run", "output_sequence_lengths", "avg"))


def _duration(folder: Folder) -> Iterator[Word]:
    facts, took = kimi_k3(), folder.number("duration_ns")
    if took is None or folder.concurrency is None:
        yield "duration", UNKNOWN, "not in the result", "rules"
        return
    ultra = folder.concurrency <= facts.curve["ultra_low"]
    least = facts.seconds["ultra_low" if ultra else "other"]
    text = f"{took / 1e9:.0f} s, at least {least} s are expected"
    yield "duration", MET if took / 1e9 >= least else FLAGGED, text, "rules"


def _gate(rule: str, found: float | None, least: float) -> Word:
    if found is None:
        return rule, UNKNOWN, f"not in the folder; must be at least {least:g} %", "checker"
    return rule, MET if found >= least else REFUSED, f"{found:.2f} %, must be at least {least:g} %", "checker"


def _length(found: float | None) -> Word:
    """Inside both sources' ranges, outside both, or where they disagree."""
    ranges: Mapping[str, Sequence[float]] = kimi_k3().gates["output_tokens"]
    told = ", ".join(f"{low:g} to {high:g} ({name})" for name, (low, high) in ranges.items())
    if found is None:
        return "output per turn", UNKNOWN, f"full-run mean not in the result; {told}", "checker"
    allowed = [low <= found <= high for low, high in ranges.values()]
    word = MET if all(allowed) else UNKNOWN if any(allowed) else REFUSED
    return "output per turn", word, f"{found:.0f} tokens; {told}", "checker"


def _whole(folders: Sequence[Folder], points: Sequence[int]) -> Iterator[Standing]:
    """What only the runs together show."""
    if not folders:
        return
    facts, found = kimi_k3(), curve.regions(points)
    by_region: dict[str, float] = {}
    for folder in folders:
        region = found.of(folder.concurrency) if found and folder.concurrency else None
        if region in curve.MANDATORY and SWE_BENCH in folder.scores:
            by_region.setdefault(region, folder.scores[SWE_BENCH])
    least, needed = facts.gates["swe_bench_percent"], facts.gates["swe_bench_results"]
    if len(by_region) < needed:
        text = f"{len(by_region)} of {needed} regions have a result; their mean must be at least {least:g} %"
        yield Standing("curve", "SWE-bench score", UNKNOWN, text, "checker")
    else:
        mean = sum(by_region.values()) / len(by_region)
        text = f"mean of {needed} regions {mean:.2f} %, must be at least {least:g} %"
        yield Standing("curve", "SWE-bench score", MET if mean >= least else REFUSED, text, "checker")
    names = {str(at(folder.config, "model_params", "name")) for folder in folders}
    word = MET if len(names) == 1 else FLAGGED
    yield Standing("curve", "one model", word, ", ".join(sorted(names)), "rules")
