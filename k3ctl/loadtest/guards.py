"""Guards: pure checks that turn a row of numbers into a verdict, each with its arithmetic in its text.

A finding's level is one of

* ``invalid``: the number is not what it claims to be; the row is shown, never compared, and the command
  exits 1;
* ``caution``: the number stands, with this limit;
* ``note``: worth knowing, or a failed guard that the preset waives, with the preset's reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from k3ctl.deployment import CPU, Deployment
from k3ctl.loadtest import prefix, stats
from k3ctl.loadtest.acceptance import Acceptance as PerRequest
from k3ctl.loadtest.clientcpu import ClientLoad
from k3ctl.loadtest.energy import NOT_READ, Energy
from k3ctl.loadtest.rows import Row, Stat
from k3ctl.loadtest.window import ServerWindow
from k3ctl.loadtest.workload import Workload
from k3ctl.telemetry.measures import Acceptance

INVALID, CAUTION, NOTE = "invalid", "caution", "note"

LITTLE_TOLERANCE = 0.05
OUTPUT_LENGTH_TOLERANCE = 0.03
PROMPT_LENGTH_TOLERANCE = 0.05
PROMPT_LENGTH_FREE_TOKENS = 64
"""A chat template may add this many tokens to any prompt."""
COARSE_STEP = 0.02
COARSE_INTERVAL = 0.05
ACCEPTANCE_ABOVE_GOLDEN = 0.15
ACCEPTANCE_COLLAPSE = 1.05
DRAFTER_CEILING = 4.0
"""The golden curve's highest acceptance length (K = 8): no real drafter gives more in every single chunk."""
PREFIX_HITS_EXPECTED_NONE = 0.01
CLIENT_DELAY_SHARE = 0.05
BURST_INVALID, BURST_CAUTION = 0.5, 0.8
"""Client's ITL over the server's: below this the client read several tokens at once."""
CLOCK_JUMP_S = 0.5
ACCEPTANCE_MEANS_APART = 0.05
CLIENT_CPU, HOST_CPU = 0.85, 0.95
"""Busy share of one processor (aiperf's limit), and of the client's machine."""


@dataclass(frozen=True)
class GuardFinding:
    """One guard's word about one row."""

    guard: str
    level: str
    text: str
    raised: str = ""
    """Level before the preset's waiver; empty where none applied."""


@dataclass(frozen=True)
class GuardEvidence:
    """What the guards look at."""

    row: Row
    workload: Workload
    deployment: Deployment
    server: ServerWindow | None
    golden_al: float | None
    """Reference acceptance length for the deployment's number of speculative tokens."""
    token_mismatch: str | None = None
    """How the client's tokenizer differs from the server's, when it does."""
    energy: Energy = NOT_READ
    accepted: PerRequest | None = None
    """Acceptance as the requests told it; None when the server does not."""
    client: ClientLoad | None = None
    prefix_reset: str | None = None
    """What the server said to emptying its prefix cache before this rung (``prefix``)."""
    first_rung: bool = True
    ranks_differ: tuple[str, ...] = ()


def judge(evidence: GuardEvidence) -> tuple[GuardFinding, ...]:
    """Every guard's finding about a row, worst first; the preset's waivers are applied."""
    found = [finding for guard in GUARDS for finding in guard(evidence)]
    waived = [_waive(finding, evidence.workload) for finding in found]
    return tuple(sorted(waived, key=lambda finding: (INVALID, CAUTION, NOTE).index(finding.level)))


def valid(findings: Iterable[GuardFinding]) -> bool:
    """Whether no finding says ``invalid``."""
    return all(finding.level != INVALID for finding in findings)


def _waive(finding: GuardFinding, workload: Workload) -> GuardFinding:
    reason = workload.waive.get(finding.guard)
    if reason is None or finding.level == NOTE:
        return finding
    text = f"{finding.text}; waived by the preset: {reason}"
    return replace(finding, level=NOTE, text=text, raised=finding.level)


def errors(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Failed requests, an error limit that ended the step, or nothing finished."""
    total = e.row.completed + e.row.errored + e.row.incomplete
    if e.row.completed == 0:
        yield GuardFinding("errors", INVALID, f"no request finished ({e.row.errored} of {total} failed)")
    elif e.row.errored:
        yield GuardFinding("errors", INVALID, f"{e.row.errored} of {total} requests failed")
    elif not 0 < e.row.output_tok_s < math.inf:
        yield GuardFinding(
            "errors", INVALID, f"{e.row.completed} requests finished, and no output was counted"
        )
    if e.row.stopped_by_errors:
        yield GuardFinding(
            "errors", INVALID, "the client's error limit ended the step early (its exit status is 0 then)"
        )


def statistics(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Numbers that no set of measurements can have."""
    named = {
        "latency": e.row.latency_s,
        "TTFT": e.row.ttft_ms,
        "ITL": e.row.itl_ms,
        "output length": e.row.output_tokens,
    }
    for name, stat in named.items():
        if problem := _impossible(stat):
            yield GuardFinding("statistics", INVALID, f"{name}: {problem}")


def _impossible(stat: Stat) -> str | None:
    quantiles = (stat.p25, stat.p50, stat.p75, stat.p90, stat.p95, stat.p99)
    values = [v for v in (stat.mean, *quantiles, stat.std, stat.min, stat.max) if v is not None]
    if any(not math.isfinite(value) for value in values):
        return "not a finite number"
    if any(value < 0 for value in values):
        return "negative"
    if None not in (stat.std, stat.min, stat.max, stat.mean):
        assert (
            stat.std is not None and stat.min is not None and stat.max is not None and stat.mean is not None
        )
        # n values in [min, max] deviate by at most (max − min)/2 · √(n/(n−1)) ≤ (max − min)/√2;
        # below 5 % of the mean a contradiction is rounding, not damage
        limit = max((stat.max - stat.min) / math.sqrt(2), 0.05 * abs(stat.mean))
        if stat.count > 1 and stat.std > limit:
            return f"standard deviation {stat.std:g} cannot come from values in {stat.min:g}..{stat.max:g}"
        slack = 1e-6 * max(abs(stat.mean), 1.0)
        if not stat.min - slack <= stat.mean <= stat.max + slack:
            return f"mean {stat.mean:g} outside {stat.min:g}..{stat.max:g}"
    ordered = [v for v in quantiles if v is not None]
    return None if ordered == sorted(ordered) else "percentiles do not ascend"


def request_count(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The quantisation step: a throughput over n finished requests moves in steps of 1/n."""
    share = stats.step_share(e.row.completed)
    if share is None:
        return
    level = CAUTION if share > COARSE_STEP else NOTE
    yield GuardFinding(
        "request-count", level, f"{e.row.completed} requests finished: one more or less moves it ±{share:.1%}"
    )


def interval(e: GuardEvidence) -> Iterable[GuardFinding]:
    """A 95 % interval wider than 5 %."""
    share = stats.interval_share(e.row.latency_s)
    if share is not None and share > COARSE_INTERVAL:
        yield GuardFinding("interval", CAUTION, f"95 % interval of the mean is ±{share:.1%}")


def little(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Little's law: throughput × latency = concurrency × output length, within 5 % and one request."""
    ratio = stats.little_ratio(e.row)
    step = stats.step_share(e.row.completed)
    if ratio is None or step is None or e.row.partial or e.workload.sessions:  # agents pause
        return
    if abs(ratio - 1) > LITTLE_TOLERANCE + step:
        why = "more work counted than the window holds" if ratio > 1 else "the slots were not always busy"
        yield GuardFinding(
            "little", INVALID, f"Little ratio {ratio:.2f} (expected 1 ± {LITTLE_TOLERANCE + step:.2f}): {why}"
        )


def output_length(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Outputs of another length than asked: the model stopped by itself, ``ignore_eos`` was lost."""
    asked, mean = e.workload.output_tokens, e.row.output_tokens.mean
    if not asked and not e.workload.sessions:
        yield GuardFinding(
            "output-length", CAUTION, "the file does not say which output length was asked for"
        )
    if not asked or not mean or not e.row.completed:
        return
    if abs(mean - asked) > max(OUTPUT_LENGTH_TOLERANCE * asked, 1):
        yield GuardFinding(
            "output-length", INVALID, f"mean output {mean:.0f} tokens, asked {asked}: not this workload"
        )


def prompt_length(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Prompts of another length than asked: client and server count with different tokenizers."""
    asked, mean = e.workload.prompt_tokens + (e.workload.prefix_tokens or 0), e.row.prompt_tokens.mean
    if e.workload.sessions or not asked or not mean or not e.row.completed:
        return
    allowed = max(PROMPT_LENGTH_TOLERANCE * asked, PROMPT_LENGTH_FREE_TOKENS)
    if abs(mean - asked) > allowed:
        yield GuardFinding(
            "prompt-length",
            INVALID,
            f"mean prompt {mean:.0f} tokens, asked {asked} ({mean / asked - 1:+.0%})",
        )


def tokenizer(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Client and server cut the same text into different numbers of tokens."""
    if e.token_mismatch:
        yield GuardFinding("tokenizer", INVALID, e.token_mismatch)


def prefix_cache(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Prefix hits where every prompt is unique, or none where prompts share a prefix."""
    if e.server is None or e.server.prefix_hit_share is None or e.workload.sessions:
        return
    share, shared = e.server.prefix_hit_share, bool(e.workload.prefix_tokens)
    if not shared and share > PREFIX_HITS_EXPECTED_NONE:
        yield GuardFinding(
            "prefix-cache", INVALID, f"{share:.1%} of prompt tokens came from the prefix cache; expected none"
        )
    if shared and share < PREFIX_HITS_EXPECTED_NONE:
        yield GuardFinding(
            "prefix-cache", INVALID, "no prefix hits although every prompt shares a prefix: caching is off"
        )


def acceptance(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Acceptance against the golden curve: far above is a workload artefact, 1 a useless drafter."""
    length = e.server.acceptance_length if e.server else None
    if length is None:
        return
    if synthetic(e):
        return
    if length <= ACCEPTANCE_COLLAPSE:
        yield GuardFinding(
            "acceptance", CAUTION, f"acceptance length {length:.2f}: the drafter is never right, turn it off"
        )
    elif e.golden_al and length > e.golden_al * (1 + ACCEPTANCE_ABOVE_GOLDEN):
        text = f"acceptance length {length:.2f}, reference {e.golden_al:.2f}: an artefact of the prompts"
        yield GuardFinding("acceptance", INVALID, text)


def synthetic_stamp(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Synthetic acceptance: the text is meaningless, the speed is not a prediction."""
    why = synthetic(e)
    if why:
        yield GuardFinding(
            "synthetic", CAUTION, f"SYNTHETIC acceptance ({why}): not a real speed, no accuracy may be read"
        )


def synthetic(e: GuardEvidence) -> str | None:
    """Why acceptance is taken to be synthetic, or None.

    The server's configuration says so, or the traces do: acceptance per position that falls from 1 to 0 at
    once, or the same whole number of tokens in every chunk.
    """
    if e.deployment.acceptance == "synthetic":
        return "configured on the server"
    if e.server and e.server.draft_length and e.server.acceptance_length:
        rates = e.server.acceptance_per_position
        seen = Acceptance(len(rates), e.server.drafts, e.server.acceptance_length, rates, "window")
        if seen.looks_synthetic:
            return "suspected: acceptance per position falls from 1 to 0 in one step"
    chunk = e.row.tokens_per_chunk
    whole = chunk.mean is not None and chunk.min == chunk.max == chunk.mean == round(chunk.mean)
    if whole and chunk.mean and chunk.mean > DRAFTER_CEILING and chunk.count > 10:
        return f"suspected: exactly {chunk.mean:.0f} tokens in every chunk"
    return None


def reasoning_only(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Every token was reasoning: no visible text, the tokens still count."""
    if e.row.completed and e.row.ttft_ms.count and e.row.ttfot_ms.count == 0 and not e.row.partial:
        yield GuardFinding(
            "reasoning-only", NOTE, "no visible token in any answer: reasoning only; its tokens are counted"
        )


def conditions(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The server is not set up as it was for the preset's published number."""
    wanted, have = e.workload.expects, e.deployment
    labels = {
        "num_speculative_tokens": "K",
        "acceptance": "acceptance",
        "synthetic_acceptance_length": "synthetic acceptance length",
        "prefix_caching": "prefix caching",
    }
    for name, label in labels.items():
        expected, found = getattr(wanted, name), getattr(have, name)
        if expected is not None and found is not None and expected != found:
            yield GuardFinding(
                "conditions", CAUTION, f"{label} is {_word(found)}, the preset's is {_word(expected)}"
            )


def _word(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def restart(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The server is not the same process any more."""
    if e.server and e.server.restarted:
        yield GuardFinding("restart", INVALID, "the server restarted during the step")


def clock(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The wall clock jumped against the steady clock."""
    if e.server and e.server.clock_jump_s > CLOCK_JUMP_S:
        yield GuardFinding(
            "clock", INVALID, f"the clock jumped by {e.server.clock_jump_s:.1f} s during the step"
        )


def client_saturation(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The client dispatched late: its own speed is part of the number."""
    delay, latency = e.row.dispatch_delay_s, e.row.latency_s.mean
    if delay and latency and delay > CLIENT_DELAY_SHARE * latency:
        text = f"requests left the client {delay * 1000:.0f} ms late, {delay / latency:.0%} of their latency"
        yield GuardFinding("client-saturation", CAUTION, text)


def bursts(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The client's ITL is below what the server took: it read late and found many tokens waiting."""
    took = e.server.tpot_ms if e.server else None
    seen = e.row.itl_ms.mean
    if not took or seen is None or e.row.completed == 0 or seen >= BURST_CAUTION * took:
        return
    level = INVALID if seen < BURST_INVALID * took else CAUTION
    text = f"mean ITL {seen:.2f} ms, the server took {took:.2f} ms a token: the client read tokens in bursts"
    yield GuardFinding("bursts", level, text)


def path(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The specialized path was asked for and did not run the decode steps."""
    taken = e.server.path if e.server else None
    if taken is None or taken.decode_share is None or e.deployment.decode_backend != "latency_specialized":
        return
    if taken.decode_share < 0.95:
        reason = max(taken.reasons, key=lambda name: taken.reasons[name], default="unknown")
        text = f"the specialized path ran {taken.decode_share:.0%} of pure decode steps; most often: {reason}"
        yield GuardFinding("path", CAUTION, text)


def partial(e: GuardEvidence) -> Iterable[GuardFinding]:
    """An interrupted step: no warm-up cut, no full window."""
    if e.row.partial:
        yield GuardFinding(
            "partial", INVALID, "from the event log of an interrupted run: no warm-up cut, window incomplete"
        )


def acceptance_mean(e: GuardEvidence) -> Iterable[GuardFinding]:
    """The mean over requests is not tokens per step: short requests weigh too much in it."""
    told = e.accepted
    if told is None or told.steps == 0:
        return
    if abs(told.request_mean / told.length - 1) > ACCEPTANCE_MEANS_APART:
        text = (
            f"acceptance length {told.length:.2f} over steps, {told.request_mean:.2f} as the mean over "
            f"{told.requests} requests: only the first is tokens per step"
        )
        yield GuardFinding("acceptance-mean", CAUTION, text)


def client_cpu(e: GuardEvidence) -> Iterable[GuardFinding]:
    """A client process near a whole processor, or a machine without a free one, is late by itself."""
    load = e.client
    if load is None:
        return
    if load.busiest > CLIENT_CPU:
        text = f"a client process used {load.busiest:.0%} of a processor: its own speed is part of the number"
        yield GuardFinding("client-cpu", CAUTION, text)
    if load.host is not None and load.host > HOST_CPU and e.deployment.gpu != CPU:
        text = f"the client's machine was {load.host:.0%} busy: requests waited for a processor"
        yield GuardFinding("client-cpu", CAUTION, text)


def prefix_reset(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Sessions repeat from rung to rung: what an earlier rung left in the prefix cache makes a later one faster."""
    if e.prefix_reset == prefix.REFUSED:
        text = "the server offers to empty its prefix cache, and did not: requests held it"
        yield GuardFinding("prefix-reset", CAUTION, text)
    elif e.workload.sessions and not e.first_rung and e.prefix_reset not in (prefix.EMPTIED, prefix.OFF):
        text = "the prefix cache was not emptied before this rung, which repeats the sessions of the last one"
        yield GuardFinding("prefix-reset", CAUTION, text)


def ranks(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Ranks that do not run the same are as slow as the slowest, and the bundle names only one of them."""
    if e.ranks_differ:
        yield GuardFinding("ranks", CAUTION, f"ranks differ: {'; '.join(e.ranks_differ)}")


def energy(e: GuardEvidence) -> Iterable[GuardFinding]:
    """Power was read, and the joules may not be quoted. Where it was not read there is nothing to say."""
    if e.energy.window_s and e.energy.reasons:
        yield GuardFinding("energy", NOTE, f"no joules per token: {'; '.join(e.energy.reasons)}")


GUARDS: tuple[Callable[[GuardEvidence], Iterable[GuardFinding]], ...] = (
    errors,
    statistics,
    partial,
    restart,
    clock,
    output_length,
    prompt_length,
    tokenizer,
    prefix_cache,
    little,
    acceptance,
    synthetic_stamp,
    conditions,
    path,
    client_saturation,
    bursts,
    request_count,
    interval,
    reasoning_only,
    acceptance_mean,
    client_cpu,
    prefix_reset,
    ranks,
    energy,
)
