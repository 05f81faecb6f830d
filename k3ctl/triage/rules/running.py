"""While serving: crashes, stalls, hangs, and waits that only look like one."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 3, 31)

RULES = (
    TriageRule(
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
            r"CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress",
        ),
        leads_to=("gpu-software-xid", "xid-13", "watchdog-ended"),
        instead=(
            (("pipeline-parallel", "pynccl-off", "no-k3-plugin"), "illegal-access-pynccl"),
            (("prefix-caching-off", "replayssm-on"), "illegal-access-replayssm"),
            (("prefix-caching-off",), "illegal-access"),
        ),
        unlike="`illegal-access`: prefix caching is off already; `illegal-access-pynccl`: pipeline parallel "
        "without pynccl",
    ),
    TriageRule(
        id="illegal-access-pynccl",
        title="illegal memory access under pipeline parallelism, and vLLM runs without pynccl",
        cause="vLLM 0.33.0 needs NCCL 2.29.7; with an older one pynccl is silently off, the stages order the wrong "
        "stream, and "
        "one reads what the other has not written: wrong tokens first, then this",
        action="load NCCL 2.29.7 or newer, or serve with k3ctl's plugin k3_runtime, which carries a fix (check "
        "LD_PRELOAD, VLLM_NCCL_SO_PATH and VLLM_DISABLE_PYNCCL), and treat "
        "the answers "
        "before the crash as suspect",
        source="vLLM 0.33.0, v1/worker/gpu/pp_utils.py; measured on two H200s, one run each",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        leads_to=("gpu-software-xid", "watchdog-ended"),
        unlike="`prefix-cache-illegal-access`: one stage, or NCCL is new enough",
    ),
    TriageRule(
        id="illegal-access-replayssm",
        title="illegal memory access with ReplaySSM; prefix caching is already off and not the cause",
        cause="prefix caching is ruled out by this log's own arguments; of what they turn on, ReplaySSM writes the "
        "recurrent state",
        action="set use_replayssm=false and start again; if it stays, CUDA_LAUNCH_BLOCKING=1 names the kernel",
        source="https://github.com/vllm-project/vllm/pull/51855 (what ReplaySSM does); no public report of this "
        "crash is known",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        leads_to=("gpu-software-xid", "watchdog-ended"),
        unlike="`illegal-access`: ReplaySSM is off too",
    ),
    TriageRule(
        id="illegal-access",
        title="illegal memory access; prefix caching is already off and not the cause",
        cause="a kernel touched memory that is not its own; the known fault of prefix caching is ruled out by this "
        "log's arguments",
        action="start again with CUDA_LAUNCH_BLOCKING=1 (or under compute-sanitizer) to see the kernel's name, and "
        "report it with "
        "versions and arguments",
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/, cudaErrorIllegalAddress",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        leads_to=("gpu-software-xid", "watchdog-ended"),
        unlike="`prefix-cache-illegal-access`: prefix caching is on, or the log does not say",
    ),
    TriageRule(
        id="launch-failure",
        title="a kernel failed on the GPU: {what}",
        cause="CUDA reports it at the next call, so that the stack trace may name the wrong place",
        action="look for an Xid at this time (`dmesg -T | grep -i xid`); without one, start again with "
        "CUDA_LAUNCH_BLOCKING=1",
        source="https://github.com/vllm-project/vllm/issues/27430",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"CUDA error: (?P<what>unspecified launch failure|misaligned address|an illegal instruction was "
            r"encountered"
            r"|device-side assert triggered|hardware stack error|the launch timed out and was terminated)",
        ),
        leads_to=("gpu-software-xid", "watchdog-ended"),
        unlike="`prefix-cache-illegal-access`: an illegal address; `nvlink-error` and `ecc-error`: the board",
    ),
    TriageRule(
        id="native-crash",
        title="{process} crashed in native code: {what}",
        cause="a library ended the process without a Python exception; the frames below the line name it",
        action="read the stack below that line; keep the core dump (`coredumpctl`), and look for an Xid (`dmesg -T "
        "| grep -i xid`)",
        source="https://docs.python.org/3/library/faulthandler.html",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"(?P<what>Fatal Python error: [\w ]+)",
            r"(?P<what>!{3,20} Segfault encountered !{3,20})",
            r"(?P<what>\*{3} SIG(?:SEGV|ABRT|BUS|FPE|ILL)\b.{0,60}?)(?: received| \(|$)",
            r"^(?P<what>(?:Segmentation fault|Bus error|Aborted|Floating point exception)(?: \(core dumped\))?)$",
            r"(?P<what>(?:free|malloc|munmap_chunk|double free|corrupted)\S*: (?:invalid|corrupted|double)[\w ]+)",
            r"(?P<what>segfault at [0-9a-f]+ ip [0-9a-f]+)",
        ),
        leads_to=("process-killed", "watchdog-ended"),
        unlike="`process-killed`: no line of its own; `prefix-cache-illegal-access`: the segfault is inside "
        "cudaGraphLaunch",
    ),
    TriageRule(
        id="shared-experts-assert",
        title="the shared experts' output was taken twice",
        cause="a known fault of this build's shared-expert overlap; it strikes minutes after the start",
        action="update vLLM to a build after 0.33.0, or set VLLM_DISABLE_SHARED_EXPERTS_STREAM=1",
        source="https://github.com/SemiAnalysisAI/InferenceX/blob/main/perf-changelog.yaml",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"assert self\._output\[self\._output_idx\] is None",),
    ),
    TriageRule(
        id="slow-not-hung",
        title="slow, not hung: {what} moved from {first} to {last} of {total}",
        cause="the warnings about shared-memory blocks only say that a process is busy; the counter moves",
        action="wait about {left}, and keep the autotune cache so that the next start skips it",
        source="https://github.com/vllm-project/vllm/pull/54794",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
    ),
    TriageRule(
        id="hung",
        role="symptom",
        slack_s=120.0,
        unlike="`slow-not-hung`: a counter moves between the warnings; `waiting`: too few warnings to tell",
        title="hung: {count} warnings over {minutes} minutes, and nothing moved",
        cause="the engine core waits for a worker that does not answer; no counter and no other line in "
        "that time",
        action="dump the workers' stacks (`py-spy dump --pid PID`), then stop the run: it will not recover",
        source="https://github.com/vllm-project/vllm/pull/54794",
        checked=_CHECKED,
        expires=_EXPIRES,
    ),
    TriageRule(
        id="waiting",
        title="waiting: {count} warnings about shared-memory blocks, too few to tell slow from hung",
        cause="a process has been busy for more than a minute, and no counter shows whether it gets on",
        action="look again in five minutes: `k3ctl triage` compares the counters",
        source="https://github.com/vllm-project/vllm/pull/54794",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
    ),
    TriageRule(
        id="stalled",
        role="symptom",
        slack_s=120.0,
        unlike="`hung`: the core warns about a worker; `collective-timeout`: NCCL's watchdog speaks",
        title="the engine stalled: {running} requests running, 0 tokens/s for {seconds} s",
        cause="the scheduler believes in running requests and no step finishes",
        action="dump the workers' stacks (`py-spy dump --pid PID`), keep the log, restart",
        source="https://github.com/vllm-project/vllm/issues/50880",
        checked=_CHECKED,
        expires=_EXPIRES,
    ),
    TriageRule(
        id="process-killed",
        role="symptom",
        leads_to=("peer-closed",),
        unlike="`cgroup-oom` and `host-oom`: the kernel log names the killer; `native-crash`: a signal or stack is "
        "in the log",
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
    TriageRule(
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
            r"Engine loop is (?:not running|dead)",
            r"RuntimeError: Executor failed",
            r"\[k3ctl\] the engine (?:ended|was killed)",
        ),
        role="report",
    ),
    TriageRule(
        id="teardown",
        title="a process went down with the others: {what}",
        cause="what processes say when the others are already gone",
        action="read the first error above it",
        source="Python and ZeroMQ, errors of closed pipes and sockets",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"^(?P<what>(?:BrokenPipeError|EOFError|ConnectionResetError|ConnectionAbortedError|KeyboardInterrupt|SystemExit)\b)",
            r"^(?P<what>(?:asyncio\.exceptions\.|concurrent\.futures\._base\.)?CancelledError)",
            r"^(?P<what>zmq\.error\.(?:ContextTerminated|ZMQError: (?:Socket operation|Context was)))",
            r"^(?P<what>RuntimeError: cancelled)",
            r"^(?P<what>ray\.exceptions\.(?:RayActorError|ActorDiedError|RayTaskError))",
            r"(?P<what>Parent process exited)",
        ),
        role="report",
    ),
    TriageRule(
        id="tasks-ended",
        title="{what}",
        cause="the launcher reports that processes ended; it does not know why",
        action="read the first error of the rank that it names",
        source="https://slurm.schedmd.com/srun.html; PyTorch, torch/distributed/elastic",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"srun: error: (?P<what>\S+: tasks? \S+: (?:Exited|Killed|Terminated|Aborted|Segmentation).*)",
            r"(?P<what>Job step aborted)",
            r"(?P<what>Sending process \d+ closing signal SIG\w+)",
            r"(?P<what>failed \(exitcode: -?\d+\) local_rank: \d+)",
            r"^(?P<what>torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError)",
            r"(?P<what>Primary job +terminated normally, but)",
            r"(?P<what>resource_tracker: There appear to be)",
        ),
        role="report",
    ),
    TriageRule(
        id="unknown-report",
        title="{exception}",
        cause="no rule knows this line; it is the first one that reports an error",
        action="read it in the log, and look it up in vLLM's issues",
        source="none",
        checked=_CHECKED,
        expires=_EXPIRES,
        role="report",
        unlike="`unknown-error`: an exception was raised",
    ),
    TriageRule(
        id="unknown-error",
        title="{exception}",
        cause="no rule knows this error; it is the first one that was raised",
        action="read it in the log, and look it up in vLLM's issues",
        source="none",
        checked=_CHECKED,
        expires=_EXPIRES,
        unlike="every other kind: the exception is shown with the lines of its cause",
    ),
)
