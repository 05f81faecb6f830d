"""The kernel log: GPUs and switches that failed, processes that were killed for their memory."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 11, 30)
_EXPIRES = date(2027, 9, 30)
_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_CGROUPS = "https://docs.kernel.org/admin-guide/cgroup-v2.html"

RULES = (
    TriageRule(
        id="gpu-off-bus",
        title="GPU{gpus} has fallen off the bus{xids}",
        cause="PCIe lost the device (Xid 79, or the same message without a number){switches}{process}",
        action="drain the node, power-cycle it, and hand the GPU to repair if it comes back",
        source="https://github.com/leptonai/gpud/pull/1209",
        checked=date(2026, 9, 22),
        expires=_EXPIRES,
        role="root",
        leads_to=("gpu-lost",),
        unlike="`gpu-hardware`: the device still answers; `container-lost-gpus`: the host still sees it",
    ),
    TriageRule(
        id="gpu-hardware",
        title="GPU hardware: {gpus}:{xids} ({meaning})",
        cause="the driver reports a fault of the board, its memory, its links or its firmware "
        "processor{switches}{process}; "
        "what the engine says about it is a consequence",
        action="{advice}",
        source=f"{_CATALOGUE}; seen with Kimi on 8 GPUs: https://github.com/vllm-project/vllm/issues/40652",
        checked=_CHECKED,
        expires=_EXPIRES,
        role="root",
        leads_to=("nvswitch-error", "nvlink-error", "ecc-error", "gpu-software-xid"),
        unlike="`gpu-software-xid`: the program did something illegal, the board is fine; one Xid 45 or 43 is only "
        "an echo",
    ),
    TriageRule(
        id="nvswitch-error",
        title="NVSwitch {switch}: fatal SXid {sxids}",
        cause="the switch between the GPUs reports a fatal error; its GPUs lose NVLink",
        action="drain the node, reset all its GPUs together or reboot it, and run the switch diagnosis; out of "
        "service when "
        "it comes back",
        source="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446; NVIDIA Fabric Manager user guide, "
        "SXid errors",
        checked=_CHECKED,
        expires=_EXPIRES,
        role="root",
        leads_to=("nvlink-error",),
        unlike="`gpu-hardware`: an Xid names a GPU; `nvswitch-warning`: every SXid says non-fatal",
    ),
    TriageRule(
        id="nvswitch-warning",
        title="NVSwitch {switch}: non-fatal SXid {sxids}",
        cause="the switch corrected or contained an error",
        action="watch for its return: `dmesg -T | grep SXid`",
        source="NVIDIA Fabric Manager user guide, SXid errors",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
        unlike="`nvswitch-error`: a fatal SXid",
    ),
    TriageRule(
        id="xid-13",
        title="Xid 13 on {gpus} in {names}: a kernel did something illegal",
        cause="reported with speculative decoding at contexts above 200k tokens; the software, not the board",
        action="lower max_model_len below 200k or turn speculation off, and report it with the request",
        source="https://github.com/sgl-project/sglang/issues/32855",
        checked=date(2026, 9, 22),
        expires=date(2027, 3, 31),
        role="symptom",
        unlike="`gpu-software-xid`: another Xid of the same kind",
    ),
    TriageRule(
        id="gpu-software-xid",
        title="Xid {numbers} on {gpus} in {names}: {meaning}",
        cause="a program's fault, not the board's: the kernel or copy of that process touched what it must not",
        action="read that process's own log for the first CUDA error; start again with CUDA_LAUNCH_BLOCKING=1 to "
        "see the "
        "kernel; if other programs get the same Xid on this GPU, run `dcgmi diag -r 3`",
        source=_CATALOGUE,
        checked=_CHECKED,
        expires=_EXPIRES,
        role="symptom",
        slack_s=60.0,
        unlike="`gpu-hardware`: Xids that no program can cause",
    ),
    TriageRule(
        id="gpu-memory-remapped",
        title="GPU memory: {gpus}:{xids} ({meaning})",
        cause="the GPU met an error in its memory and put it aside",
        action="finish what runs, then reset the GPU so that the remapping takes effect; watch whether it returns",
        source=_CATALOGUE,
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
        unlike="`gpu-hardware`: uncontained, or the remapping failed (Xid 48, 64, 95)",
    ),
    TriageRule(
        id="xid-unknown",
        title="Xid {numbers} on {gpus}: not in k3ctl's table",
        cause="the driver reports a GPU error that this version of k3ctl does not know",
        action=f"look the number up: {_CATALOGUE}",
        source=_CATALOGUE,
        checked=_CHECKED,
        expires=_EXPIRES,
        role="symptom",
        slack_s=60.0,
    ),
    TriageRule(
        id="gpu-init-failed",
        title="the driver could not bring a GPU up",
        cause="RmInitAdapter failed: the board, its power, its firmware or the driver's version",
        action="power-cycle the node; if it stays, hand the GPU to repair (`nvidia-bug-report.sh`)",
        source=_CATALOGUE,
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"RmInitAdapter failed",),
        role="root",
        unlike="`driver-mismatch`: two versions of the driver; the board is fine",
    ),
    TriageRule(
        id="cgroup-oom",
        title="the memory limit of the container or job was reached: {process} (pid {pid}) was killed",
        cause="the kernel killed it for its cgroup's host-memory limit, not for GPU memory; the machine has "
        "more{rss}",
        action="raise that limit (Kubernetes resources.limits.memory, Slurm --mem, systemd MemoryMax, docker "
        "--memory), or load "
        "the weights with less host memory",
        source=_CGROUPS,
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d+),? \((?P<process>[^)]+)\)"
            r"(?:.*?anon-rss:(?P<rss_kb>\d+)kB)?",
            r"oom-kill:constraint=CONSTRAINT_MEMCG.*?task=(?P<process>[^,]+),pid=(?P<pid>\d+)",
            r"Detected \d+ oom[_-]kill event",
            r"task\S* \S+ (?:have|has) been OOM [Kk]illed|step tasks have been OOM Killed",
            r"OOMKilled",
            r"A process of this unit has been killed by the OOM killer",
            r"Failed with result 'oom-kill'",
        ),
        role="root",
        leads_to=("killed", "process-killed", "oom-killer", "stopped-by-systemd"),
        unlike="`host-oom`: the whole machine ran out; `gpu-oom`: GPU memory, said by CUDA and not by the kernel",
    ),
    TriageRule(
        id="host-oom",
        title="the host ran out of memory: the kernel killed {process} (pid {pid})",
        cause="all memory of the machine was in use{rss}",
        action="see what used it (`dmesg` lists all processes above that line); load with less host memory, or "
        "stop other "
        "programs on this host",
        source="https://docs.kernel.org/admin-guide/mm/concepts.html",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Out of memory: Kill(?:ed)? process (?P<pid>\d+),? "
            r"\((?P<process>[^)]+)\)(?:.*?anon-rss:(?P<rss_kb>\d+)kB)?",
            r"oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY).*?task=(?P<process>[^,]+),pid=(?P<pid>\d+)",
        ),
        role="root",
        leads_to=("killed", "process-killed", "oom-killer"),
        unlike="`cgroup-oom`: only a container's or job's limit was reached",
    ),
    TriageRule(
        id="oom-killer",
        title="{process} set the kernel's out-of-memory killer off",
        cause="the process that asked for memory last; another one may have been killed for it",
        action="read on to the line `Killed process`: it names whom",
        source="https://docs.kernel.org/admin-guide/mm/concepts.html",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"(?P<process>\S+) invoked oom-killer",),
        role="report",
    ),
)
