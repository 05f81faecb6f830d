"""Ended from outside: nobody crashed, somebody ended the engine."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 11, 30)
_EXPIRES = date(2027, 9, 30)

RULES = (
    TriageRule(
        id="stopped-by-slurm",
        title="Slurm ended the job: {why}",
        cause="nobody crashed: Slurm sent SIGTERM, then SIGKILL; every later error is its consequence",
        action="ask for more time (`--time`, `scontrol update TimeLimit=`), or find who ran scancel or preempted "
        "it (`sacct -j "
        "JOB --format=State,ExitCode,End`)",
        source="https://slurm.schedmd.com/scancel.html; https://github.com/marbl/canu/issues/1052",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE|JOB REQUEUE)",
            r"CANCELLED (?:AT \S+)? ?\*{3}(?P<why>)",
            r"(?P<why>slurmstepd: error: \*{3} (?:JOB|STEP) \S+ (?:ON|CANCELLED).*)",
        ),
        role="stop",
        unlike="`stopped-outside`: the log does not say who; `killed`: SIGKILL without a warning",
    ),
    TriageRule(
        id="stopped-by-kubernetes",
        title="Kubernetes ended the container: {why}",
        cause="nobody crashed: the kubelet asked the container to stop",
        action="`kubectl describe pod` names the reason; a failed start-up or liveness probe: raise its "
        "failureThreshold above "
        "the load time (8 to 30 minutes); an eviction: requests equal to limits",
        source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?P<why>(?:failed|Failed) (?:liveness|startup) probe)",
            r"(?P<why>(?:Liveness|Startup) probe failed)",
            r"(?P<why>Stopping container \S+)",
            r"(?P<why>Killing container with a grace period)",
            r"(?P<why>[Pp]od \S*(?: was|:)? ?[Ee]vict(?:ed|ion)|[Ee]viction manager: .{0,80}?evict\w+)",
            r"(?P<why>The node was low on resource: \S+)",
        ),
        role="stop",
        unlike="`stopped-outside`: the log does not say who; `cgroup-oom`: the container's memory limit",
    ),
    TriageRule(
        id="stopped-by-systemd",
        title="systemd ended the unit: {why}",
        cause="nobody crashed: the service manager stopped the unit, or its time limit for the start ran out",
        action="`journalctl -u UNIT` and `loginctl show-user` name the reason: TimeoutStartSec below the load "
        "time, a user manager "
        "without linger, a stop or restart",
        source="https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?P<why>start operation timed out)",
            r"(?P<why>Main process exited, code=killed, status=15/TERM)",
            r"(?P<why>Failed with result 'timeout')",
            r"^(?P<why>Stopping \S+.{0,80}?\.service.{0,80}?)\.\.\.$",
        ),
        role="stop",
        unlike="`stopped-outside`: the log does not say who",
    ),
    TriageRule(
        id="stopped-outside",
        title="stopped by a signal from outside ({signal})",
        cause="nobody crashed: a process of the engine was asked to stop; the errors after it are its consequences",
        action="find who sent it: systemd (a user manager without linger ends with the login), the kubelet or a "
        "failed probe, a "
        "Slurm time limit, docker stop, a stop script; `journalctl` at this time",
        source="https://github.com/vllm-project/vllm/issues/50067; vLLM 0.33.0, v1/engine/core.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"\[shutdown\] \w+: trigger received signal=(?P<signal>SIG\w+)",
            r"(?:[Rr]eceived|[Gg]ot|[Cc]aught) (?:a )?(?:shutdown )?(?:signal:? "
            r")?(?P<signal>SIGTERM|SIGINT|SIGHUP|SIGQUIT)",
            r"[Rr]eceived (?:death )?signal (?P<signal>15|2)\b",
            r"[Rr]eceived (?P<signal>15|2) (?:death )?signal",
            r"(?P<signal>SIGTERM) (?:received|handler)",
            r"got signal: (?P<signal>15|2)\b",
            r"SignalException: .*?signal: (?P<signal>\d+)",
        ),
        severity="warning",
        role="stop",
        instead=((("starting",), "stopped-while-starting"), (("orderly",), "stopped-in-order")),
        unlike="`process-killed` and `killed`: SIGKILL, no word of its own; `engine-dead` alone: the core crashed",
    ),
    TriageRule(
        id="stopped-in-order",
        title="the server was stopped in order ({signal})",
        cause="the API server was asked to stop first, and stopped its engine",
        action="nothing to do, if it was you",
        source="vLLM 0.33.0, entrypoints/launchers/launcher.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
        role="stop",
        unlike="`stopped-outside`: the engine core got the signal before the API server",
    ),
    TriageRule(
        id="stopped-while-starting",
        title="stopped by a signal from outside ({signal}) before it served",
        cause="nobody crashed: the engine was still starting when one of its processes was asked to stop",
        action="find who sent it, and give the start more time there: a start-up probe, systemd's TimeoutStartSec, "
        "a Slurm time "
        "limit, a wrapper's time-out; loading takes 8 to 30 minutes",
        source="https://github.com/vllm-project/vllm/issues/50067; vLLM 0.33.0, v1/engine/core.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        role="stop",
        unlike="`ready-timeout`: vLLM's own limit, no signal; `stopped-outside`: it had served",
    ),
    TriageRule(
        id="ends-before-serving",
        title="the log ends before the server is ready: last seen {stage}",
        cause="no error, no signal and no word that it serves: it still starts, or it ended without a word "
        "(killed, the "
        "container or node went away, the log was cut)",
        action="see whether the process lives (`k3ctl ps`, `ps`); if not, `dmesg -T | grep -iE 'killed "
        "process|xid'` and the "
        "other nodes' logs",
        source="k3ctl, triage/detectors/ending.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        unlike="`hung`: warnings repeat; `slow-not-hung`: a counter moves; `stopped-while-starting`: a signal is "
        "in the log",
    ),
    TriageRule(
        id="no-engine-log",
        title="nothing here is known: no start, no serving, no failure of an engine in {lines} lines",
        cause="this is no log of vLLM, NCCL or the kernel, or the lines that matter are missing",
        action="give the engine's own output (stdout and stderr), one file per node",
        source="k3ctl, triage/detectors/ending.py",
        checked=_CHECKED,
        expires=_EXPIRES,
    ),
    TriageRule(
        id="worker-node-only",
        title="a worker node's log without a fault: the verdict is in node 0's log",
        cause="a headless node never serves; whether the server did is said by node 0 only",
        action="read node 0's log too: `k3ctl triage node0.log node1.log`",
        source="vLLM 0.33.0, entrypoints/cli/serve.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
    ),
)
