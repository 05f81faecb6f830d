"""Alerts: what a live view can already say is wrong.

Ids are shared with triage and doctor: one incident has one name in a log, on the screen and in a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from k3ctl.facts.k3 import SPECIALIZED_ROWS
from k3ctl.server.witness import REASONS, by_reason, decode_steps
from k3ctl.signals import stalled
from k3ctl.telemetry.acceptance import shortfall
from k3ctl.telemetry.measures import SINCE_START
from k3ctl.telemetry.prefix import no_hits
from k3ctl.telemetry.view import Alert, EngineView, ServerView, View

IDLE_AFTER_S = 30.0
COLLAPSED_LENGTH = 1.05
"""Acceptance length at or below which the drafter does nothing useful (lightseekorg/tokenspeed#1132)."""

MIN_DRAFTS = 100
MIN_STEPS = 20
MIN_FINISHED = 10
LOST_BELOW = 0.5
"""Share of specialized decode steps below which the path counts as lost."""

REPETITION_SHARE = 0.2
ARTEFACT_FACTOR = 1.15
"""Acceptance this far above the golden curve is a workload artefact (vllm-project/vllm#52536)."""

_ORDER = {"fail": 0, "warn": 1, "info": 2}


@dataclass(frozen=True)
class AlertRule:
    """What an alert means: its usual severity, when it fires, and the report that taught us."""

    severity: str
    meaning: str
    source: str = ""


def judge(view: View) -> View:
    """The view with the alerts that hold in it, worst first."""
    found = [alert for check in CHECKS for alert in check(view)]
    return replace(view, alerts=tuple(sorted(found, key=lambda alert: _ORDER[alert.severity])))


def _server_down(view: View) -> Iterator[Alert]:
    for server in view.servers:
        if server.state == "down":
            since = f" for {server.down_s:.0f} s" if server.down_s is not None else ""
            yield Alert(
                "server-down",
                "fail",
                "server does not answer",
                f"{server.failure}{since}",
                "look at the run's log (`k3ctl logs`), then start it again",
                server.source,
            )


def _server_restarted(view: View) -> Iterator[Alert]:
    for server in view.servers:
        if server.restarted_s is not None and server.restarted_s <= 60:
            yield Alert(
                "server-restarted",
                "warn",
                "server restarted",
                f"counters went back {server.restarted_s:.0f} s ago; figures count from there",
                "find out why in the engine log",
                server.source,
            )


def _stalled(view: View) -> Iterator[Alert]:
    for server, engine in _engines(view):
        if stalled(engine.load.running or 0, engine.quiet_s):
            yield Alert(
                "stalled",
                "fail",
                "engine stalled",
                f"{engine.load.running:.0f} requests running, no token or step for {engine.quiet_s:.0f} s",
                "save stacks (`py-spy dump`) and the log, then restart the server",
                _where(server, engine),
            )


def _idle(view: View) -> Iterator[Alert]:
    for server in view.servers:
        if server.state != "up" or len(server.engines) < 2:
            continue
        busy = [engine for engine in server.engines if (engine.load.running or 0) > 0]
        for engine in server.engines:
            waiting = (engine.load.running or 0) + (engine.load.waiting or 0)
            never = engine.load.totals.get("generation_tokens", 0) == 0
            if busy and waiting == 0 and (never or engine.quiet_s >= IDLE_AFTER_S):
                load = sum(other.load.running or 0 for other in busy)
                how_long = "has never generated a token" if never else f"idle for {engine.quiet_s:.0f} s"
                yield Alert(
                    "engine-idle",
                    "warn",
                    "one engine is idle",
                    f"engine {engine.label} {how_long} while {load:.0f} requests run on the others",
                    "check the router in front of the engines and its session stickiness",
                    _where(server, engine),
                )


def _preempting(view: View) -> Iterator[Alert]:
    load = view.load
    recent = load.recent.get("preemptions", 0.0)
    full = (load.kv_usage or 0.0) >= 0.95 and load.totals.get("preemptions", 0.0) > 0
    if recent <= 0 and not full:
        return
    count = (
        f"{recent:.0f} in {load.window_s:.0f} s"
        if recent > 0
        else f"{load.totals['preemptions']:.0f} since start"
    )
    usage = f", KV cache {load.kv_usage:.1%} full" if load.kv_usage is not None else ""
    yield Alert(
        "preempting",
        "warn",
        "requests are preempted",
        f"{count}{usage}: preempted requests compute their prefix again",
        "lower concurrency or `max_num_seqs`, or give the cache more room",
    )


def _rejected(view: View) -> Iterator[Alert]:
    for server in view.servers:
        if server.rejections > 0:
            recent = server.rejections_recent
            count = (
                f"{recent:.0f} in the last minute" if recent > 0 else f"{server.rejections:.0f} since start"
            )
            yield Alert(
                "requests-rejected",
                "warn" if recent > 0 else "info",
                "requests were refused at admission",
                count,
                "the queue limit is reached: lower the offered load or raise the limit",
                server.source,
            )


def _errors(view: View) -> Iterator[Alert]:
    errors = view.load.finished_recent.get("error", 0.0)
    if errors > 0:
        yield Alert(
            "requests-failed",
            "fail",
            "requests end with an error",
            f"{errors:.0f} in {view.load.window_s:.0f} s",
            "read the engine log: `k3ctl triage`",
        )


def _corrupt(view: View) -> Iterator[Alert]:
    action = "stop sending traffic, keep the log, run `k3ctl verify` and `k3ctl canary`"
    load = view.load
    if (corrupted := load.totals.get("corrupted", 0.0)) > 0:
        detail = f"{corrupted:.0f} requests with NaN logits since start"
        yield Alert("corrupt-output", "fail", "corrupt output", detail, action)
        return
    for finished, basis in (
        (load.finished_recent, f"last {load.window_s:.0f} s"),
        (load.finished, SINCE_START),
    ):
        total = sum(finished.values())
        if total < MIN_FINISHED:
            continue
        share = finished.get("repetition", 0.0) / total
        if share >= REPETITION_SHARE:
            detail = f"{share:.0%} of {total:.0f} requests stopped for repetition ({basis})"
            yield Alert("corrupt-output", "fail", "corrupt output suspected", detail, action)
        return


def _acceptance(view: View) -> Iterator[Alert]:
    data = view.load.acceptance
    if data is None:
        return
    if data.saturated:
        yield Alert(
            "acceptance-saturated",
            "fail",
            "every draft is accepted: suspect corrupt output",
            f"length {data.length:.2f} = K+1 over {data.drafts:.0f} drafts ({data.basis}); no real drafter does that",
            "read an answer: a flood of one token looks like this (`k3ctl canary`); so does a synthetic setting",
        )
        return
    if data.looks_synthetic:
        rates = ", ".join(f"{rate:.2g}" for rate in data.rates)
        yield Alert(
            "synthetic-acceptance",
            "warn",
            "SYNTHETIC acceptance suspected",
            f"acceptance per position is a step: {rates} ({data.basis})",
            "the text is meaningless and no speed here is real: drop `rejection_sample_method: synthetic`",
        )
        return
    if data.drafts < MIN_DRAFTS:
        return
    if data.length <= COLLAPSED_LENGTH:
        yield Alert(
            "acceptance-collapse",
            "warn",
            "acceptance collapsed, the drafter is useless",
            f"length {data.length:.2f} of {data.draft_tokens + 1}, {data.drafts:.0f} drafts ({data.basis})",
            "turn speculation off, or limit it to the context length where the drafter works",
        )
    elif view.golden and (why := shortfall(data, view.golden)):
        yield Alert(
            "acceptance-low",
            "warn",
            "acceptance far below the golden curve",
            f"{why}, {data.drafts:.0f} drafts ({data.basis})",
            "prompts that are hard to draft do this too: send coding prompts to tell (published at K=7: coding 4.73, "
            "creative 2.61, agentic replay 1.16–2.01); if it stays low, check that the drafter belongs to this model "
            "and run `k3ctl canary`",
        )
    if view.golden and data.length > view.golden.length * ARTEFACT_FACTOR:
        yield Alert(
            "acceptance-artefact",
            "info",
            "acceptance above the golden curve",
            f"length {data.length:.2f} against {view.golden.length:.2f}: repeated or random prompts do this",
            "do not compare this speed with published figures",
        )


def _prefix(view: View) -> Iterator[Alert]:
    for server, engine in _engines(view):
        if found := no_hits(engine):
            yield Alert(
                "prefix-cache-no-hits",
                "info",
                "the prefix cache never hits",
                found.detail,
                found.action,
                _where(server, engine),
            )


def _path(view: View) -> Iterator[Alert]:
    path = view.path
    if not path.basis:
        yield from _path_without_witness(view)
        return
    if path.known_build is False:
        yield Alert(
            "unknown-build",
            "warn",
            "the witness does not know this vLLM build",
            path.versions,
            "its counts may be wrong: use a build that the runtime names as known",
        )
    if (
        path.backend not in {"latency_specialized", "hopper"}
        or path.engagement is None
        or decode_steps(path.counts) < MIN_STEPS
    ):
        return
    if path.engagement >= LOST_BELOW:
        return
    reasons = by_reason(path.counts)
    why = REASONS.get(reasons[0][0], reasons[0][0]) if reasons else "no reason counted"
    started = path.engagement_total is not None and path.engagement_total >= LOST_BELOW
    detail = f"{path.engagement:.0%} of decode steps specialized ({path.basis}); mostly: {why}"
    rule, title = (
        ("path-lost", "specialized path lost")
        if started
        else ("path-not-engaged", "specialized path not engaged")
    )
    yield Alert(
        rule,
        "fail" if path.refused else "warn",
        title,
        detail,
        _path_action(reasons[0][0] if reasons else ""),
    )


def _path_action(reason: str) -> str:
    return {
        "rows-over-limit": f"keep running × (K+1) at {SPECIALIZED_ROWS} or below: fewer requests or a smaller K",
        "prefill-in-batch": "arrivals mix prefills into decode steps: fewer arrivals, or prefill elsewhere",
        "refused": "`k3ctl plan` lists every reason for the refusal",
        "backend-off": "start with `decode_backend: latency_specialized`",
        "slots-stock": "the executor runs stock kernels in every slot: name slots of its own in `k3_slots`",
    }.get(reason, "`k3ctl verify` names the cause")


def _path_without_witness(view: View) -> Iterator[Alert]:
    rows = view.path.rows_now
    drafts = view.load.draft_tokens
    if rows is not None and rows > SPECIALIZED_ROWS and drafts:
        yield Alert(
            "rows-over-limit",
            "warn",
            "decode steps are above the row limit",
            f"{view.load.running:.0f} running × {drafts + 1} = {rows:.0f} rows, limit {SPECIALIZED_ROWS}",
            _path_action("rows-over-limit"),
        )
    for fact in view.path.excluded:
        yield Alert(
            "path-excluded",
            "info",
            "the specialized path cannot run",
            fact,
            "`k3ctl plan` shows the alternative",
        )


def _gpus(view: View) -> Iterator[Alert]:
    for node in view.nodes:
        for found in node.findings:
            where = f"{node.source} {found.where}".rstrip()
            yield Alert(found.rule, found.severity, found.title, found.evidence, found.remedy, where)
        for gpu in node.gpus:
            if gpu.nvlink_errors_new:
                yield Alert(
                    "nvlink.errors",
                    "warn",
                    "NVLink errors",
                    f"{gpu.nvlink_errors_new} new link errors",
                    "watch this link; `k3ctl doctor`",
                    f"{node.source} GPU {gpu.sample.index}",
                )


def _engines(view: View) -> Iterator[tuple[ServerView, EngineView]]:
    for server in view.servers:
        if server.state in {"up", "late"}:
            for engine in server.engines:
                yield server, engine


def _where(server: ServerView, engine: EngineView) -> str:
    return server.source if len(server.engines) == 1 else f"{server.source} engine {engine.label}"


CHECKS: tuple[Callable[[View], Iterator[Alert]], ...] = (
    _server_down,
    _server_restarted,
    _stalled,
    _idle,
    _preempting,
    _rejected,
    _errors,
    _corrupt,
    _acceptance,
    _prefix,
    _path,
    _gpus,
)

RULES: Mapping[str, AlertRule] = {
    "server-down": AlertRule("fail", "A server that answered before does not answer now"),
    "server-restarted": AlertRule("warn", "Counters went backwards in the last minute"),
    "stalled": AlertRule(
        "fail", "Requests run, no token and no engine step for 30 s", "vllm-project/vllm#50880"
    ),
    "engine-idle": AlertRule("warn", "One of several engines has nothing to do while others run requests"),
    "preempting": AlertRule(
        "warn", "Requests are preempted in the last minute, or were and the KV cache is full"
    ),
    "requests-rejected": AlertRule("warn", "Requests were refused at admission"),
    "requests-failed": AlertRule("fail", "Requests ended with an error in the last minute"),
    "corrupt-output": AlertRule("fail", "Logits were NaN, or 20 % of requests stopped for repetition"),
    "acceptance-collapse": AlertRule(
        "warn", "Acceptance length at or below 1.05 over 100 drafts", "lightseekorg/tokenspeed#1132"
    ),
    "synthetic-acceptance": AlertRule(
        "warn", "Acceptance per position is a step function: benchmark setting, meaningless text"
    ),
    "acceptance-saturated": AlertRule(
        "fail", "Every draft is accepted over 100 drafts: one token repeated, or a synthetic setting"
    ),
    "acceptance-low": AlertRule(
        "warn",
        "Acceptance length below 0.6 of the golden curve, or it breaks at a position where the curve does not",
        "InferenceX golden acceptance curves",
    ),
    "prefix-cache-no-hits": AlertRule(
        "info", "Prefix caching is on, many prompt tokens were looked up and none was found"
    ),
    "acceptance-artefact": AlertRule(
        "info",
        "Acceptance 15 % above the golden curve: repeated or random prompts",
        "vllm-project/vllm#52536",
    ),
    "path-lost": AlertRule("warn", "Below half of the decode steps are specialized, after a time above"),
    "path-not-engaged": AlertRule(
        "warn", "The specialized backend is on, and hardly any step is specialized"
    ),
    "rows-over-limit": AlertRule("warn", "Without a witness: running × (K+1) exceeds 64 rows"),
    "path-excluded": AlertRule(
        "info", "Without a witness: the cache configuration rules the specialized path out"
    ),
    "unknown-build": AlertRule("warn", "The witness counts in a vLLM build that it does not know"),
    "nvlink.errors": AlertRule("warn", "NVLink error counters grow"),
}
"""Every alert of the monitor itself. GPU alerts besides carry the ids of `k3ctl doctor`'s rules."""
