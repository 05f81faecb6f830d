"""While serving: crashes, stalls, hangs, and waits that only look like one."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import Rule

_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 3, 31)

RULES = (
    Rule(
        id="prefix-cache-illegal-access",
        title="illegal memory access with prefix caching",
        cause="one fault with several faces: a segfault in cudaGraphLaunch, a failed TMA descriptor, an "
        "illegal access "
        "in the convolution kernel",
        action="update vLLM; until then set enable_prefix_caching=false",
        source="https://github.com/vllm-project/vllm/issues/50147",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Segfault encountered.*cudaGraphLaunch",
            r"Failed to initialize the TMA descriptor",
            r"illegal memory access was encountered",
        ),
    ),
    Rule(
        id="shared-experts-assert",
        title="the shared experts' output was taken twice",
        cause="a known fault of this build's shared-expert overlap; it strikes minutes after the start",
        action="update vLLM to a build after 0.33.0, or set VLLM_DISABLE_SHARED_EXPERTS_STREAM=1",
        source="https://github.com/SemiAnalysisAI/InferenceX/blob/main/perf-changelog.yaml",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"assert self\._output\[self\._output_idx\] is None",),
    ),
    Rule(
        id="slow-not-hung",
        title="slow, not hung: {what} moved from {first} to {last} of {total}",
        cause="the warnings about shared-memory blocks only say that a process is busy; the counter moves",
        action="wait about {left}, and keep the autotune cache so that the next start skips it",
        source="https://github.com/vllm-project/vllm/pull/54794",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
    ),
    Rule(
        id="hung",
        title="hung: {count} warnings over {minutes} minutes, and nothing moved",
        cause="the engine core waits for a worker that does not answer; no counter and no other line in "
        "that time",
        action="dump the workers' stacks (`py-spy dump --pid PID`), then stop the run: it will not recover",
        source="https://github.com/vllm-project/vllm/pull/54794",
        checked=_CHECKED,
        expires=_EXPIRES,
    ),
    Rule(
        id="waiting",
        title="waiting: {count} warnings about shared-memory blocks, too few to tell slow from hung",
        cause="a process has been busy for more than a minute, and no counter shows whether it gets on",
        action="look again in five minutes: `k3ctl triage` compares the counters",
        source="https://github.com/vllm-project/vllm/pull/54794",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
    ),
    Rule(
        id="stalled",
        title="the engine stalled: {running} requests running, 0 tokens/s for {seconds} s",
        cause="the scheduler believes in running requests and no step finishes",
        action="dump the workers' stacks (`py-spy dump --pid PID`), keep the log, restart",
        source="https://github.com/vllm-project/vllm/issues/50880",
        checked=_CHECKED,
        expires=_EXPIRES,
    ),
    Rule(
        id="process-killed",
        title="{process} ended without a word of its own",
        cause="it was killed from outside (kill -9, the kernel's out-of-memory killer) or crashed in native code",
        action="`dmesg -T | grep -iE 'killed process|segfault|xid'` names the killer; start again with `k3ctl serve`",
        source="vLLM 0.33.0, v1/executor/multiproc_executor.py and v1/engine/core_client.py; seen on an H200 by "
        "killing a worker and an engine core",
        checked=date(2026, 11, 29),
        expires=_EXPIRES,
        patterns=(
            r"(?P<process>Worker proc \S+) died unexpectedly",
            r"MPClient: (?P<process>engine core) exited unexpectedly",
        ),
    ),
    Rule(
        id="engine-dead",
        title="the engine core is dead",
        cause="the API server reports that the engine core ended",
        action="read the first error above it",
        source="vLLM 0.33.0, v1/engine/exceptions.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"EngineDeadError",
            r"EngineCore encountered a(?:n issue| fatal error)",
            r"Engine core (?:proc|process) \S+ died unexpectedly",
            r"AsyncLLM output_handler failed",
            r"RuntimeError: Executor failed",
            r"\[k3ctl\] the engine (?:ended|was killed)",
        ),
        consequence=True,
    ),
    Rule(
        id="unknown-error",
        title="{exception}",
        cause="no rule knows this error; it is the first one that was raised",
        action="read it in the log, and look it up in vLLM's issues",
        source="none",
        checked=_CHECKED,
        expires=_EXPIRES,
    ),
)
