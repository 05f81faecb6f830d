"""Limits of the process, the container and the host."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 11, 30)
_EXPIRES = date(2027, 9, 30)

RULES = (
    TriageRule(
        id="process-limit",
        title="no more processes or threads may be started",
        cause="a limit of the container or user, not memory: an engine with eight workers needs thousands of threads",
        action="raise it where the engine runs: `--pids-limit -1` (docker), podPidsLimit (kubelet), "
        "TasksMax=infinity (systemd), "
        "`ulimit -u`; OMP_NUM_THREADS=1 needs fewer",
        source="https://github.com/vllm-project/vllm/issues/6295, https://github.com/vllm-project/vllm/issues/13354",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"can't start new thread",
            r"pthread_create(?:\(\))? failed",
            r"Thread creation failed: Resource temporarily unavailable",
            r"fork: (?:retry: )?(?:Resource temporarily unavailable|No child processes)",
            r"(?:BlockingIOError: )?\[Errno 11\] Resource temporarily unavailable",
            r"thread constructor failed|std::system_error.{0,120}?Resource temporarily unavailable",
            r"cgroup: fork rejected by pids controller",
        ),
        unlike="`file-limit`: Errno 24; `host-memory-refused`: Errno 12; `cgroup-oom`: the process was killed, not "
        "refused",
    ),
    TriageRule(
        id="file-limit",
        title="too many open files",
        cause="`ulimit -n` is small in the environment that the engine runs in: sockets, shards and shared memory "
        "all count",
        action="raise it there: LimitNOFILE=1048576 (systemd), `--ulimit nofile=1048576:1048576` (docker), `ulimit "
        "-n`",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting/; vLLM 0.33.0, utils/system_utils.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?<!`OSError: )(?<!`)\[Errno 24\] (?:Too many open files|.{0,40})",
            r"(?<!`)\bToo many open files(?! in system)(?!`)(?<!24\] Too many open files)",
            r"\bEMFILE\b",
        ),
        unlike="`process-limit`: Errno 11; vLLM's own warning about the limit at the start is no failure",
    ),
    TriageRule(
        id="host-memory-refused",
        title="the host refused memory: {what}",
        cause="an allocation of host memory was refused (overcommit, a limit on address space or on mappings); "
        "nothing was killed",
        action="look at `free -g`, `ulimit -v`, vm.max_map_count and vm.overcommit_memory in the engine's "
        "environment",
        source="https://docs.kernel.org/mm/overcommit-accounting.html",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?P<what>\[Errno 12\] Cannot allocate memory)",
            r"(?P<what>DefaultCPUAllocator: can't allocate memory)",
            r"(?P<what>unable to mmap \d+ bytes)",
            r"(?P<what>std::bad_alloc)",
        ),
        unlike="`memlock`: only locked memory for RDMA; `host-oom`: the kernel killed a process",
    ),
)
