"""The host: driver, limits, disk, shared memory, GPUs that went away."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 9, 30)

RULES = (
    TriageRule(
        id="disk-full",
        title="the disk is full: {path}",
        cause="Kimi K3 needs about 1.56 TB in the cache that HF_HUB_CACHE or HF_HOME names, and Xet "
        "needs room too",
        action="free space on that volume, or point HF_HUB_CACHE (and HF_XET_CACHE) at another one",
        source="https://github.com/CSCfi/ai-inference-examples/pull/10",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"\[Errno 28\] No space left on device(?:: '(?P<path>[^']+)')?",
            r"No space left on device \(os error 28\)",
        ),
    ),
    TriageRule(
        id="log-disk-full",
        title="{bytes} bytes of this log are missing: the disk was full",
        cause="the engine went on; its output had no place",
        action="free space on the volume of the run directory",
        source="k3ctl, engine/pump.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"^\[k3ctl\] (?P<bytes>\d+) bytes of log lost",),
        severity="warning",
    ),
    TriageRule(
        id="mig-enabled",
        title="MIG is on: {uuid}",
        cause="CUDA_VISIBLE_DEVICES holds MIG identifiers; Kimi K3 needs whole GPUs",
        action="turn MIG off, or choose GPUs without it",
        source="https://github.com/vllm-project/vllm/issues/41848",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"invalid literal for int\(\) with base 10: '(?P<uuid>MIG-[^']+)'",),
        leads_to=("model-not-inspected",),
        unlike="`unknown-error` with the same ValueError: the text names no MIG device",
    ),
    TriageRule(
        id="model-not-inspected",
        title="vLLM could not inspect the model's class",
        cause="the inspection runs in a process of its own, and that one failed",
        action="read the error above it",
        source="vLLM 0.33.0, model_executor/models/registry.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"failed to be inspected",),
        role="report",
    ),
    TriageRule(
        id="memlock",
        title="locked memory is limited: RDMA cannot register its buffers",
        cause="`ulimit -l` is small in the environment that the engine runs in, whatever the host says",
        action="raise it there: LimitMEMLOCK=infinity, or `--ulimit memlock=-1` for a container",
        source="https://github.com/eugr/spark-vllm-docker/issues/389",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"ibv_reg_mr\w* failed with error Cannot allocate memory",),
        leads_to=("nccl-error", "nccl-warning"),
    ),
    TriageRule(
        id="shm-too-small",
        title="/dev/shm is too small",
        cause="NCCL could not make a shared-memory segment; containers have 64 MB by default",
        action="give it 16 GiB: `--shm-size 16g`, or an emptyDir with medium Memory",
        source="https://github.com/vllm-project/vllm/issues/789",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Error while creating shared memory segment (?P<path>/dev/shm/\S+)",
            r"failed to extend (?P<path>/dev/shm/\S+)",
        ),
        leads_to=("nccl-error", "nccl-warning"),
    ),
    TriageRule(
        id="driver-mismatch",
        title="Error 803: two libcuda versions are mixed",
        cause="a compat libcuda in the image, or LD_LIBRARY_PATH, wins over the host driver's",
        action="take the compat directory out of LD_LIBRARY_PATH; `k3ctl doctor` prints which libcuda is "
        "loaded",
        source="https://github.com/llm-d/llm-d/issues/706",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Error 803: system has unsupported display driver",),
    ),
    TriageRule(
        id="nvml-mismatch",
        title="driver and NVML library have different versions",
        cause="the driver was upgraded and the old kernel module is still loaded",
        action="reload the NVIDIA modules or reboot the host",
        source="https://github.com/vllm-project/vllm/issues/29737",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Driver/library version mismatch",
            r"NVML/RM version mismatch",
            r"LibRmVersionMismatch",
            r"API mismatch: the client has the version",
        ),
    ),
    TriageRule(
        id="gpu-lost",
        title="GPU {gpu} is lost",
        cause="the driver cannot talk to it any more",
        action="drain the node and reboot it; hand it to repair when it comes back",
        source="https://github.com/XuehaiPan/nvitop/issues/139",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"device handle for GPU (?P<gpu>[\w:.]+): GPU is lost", r"GPU ?is ?[Ll]ost"),
    ),
    TriageRule(
        id="container-lost-gpus",
        title="the container lost its GPUs: NVML says {what}",
        cause="the device files are still there and the container's device cgroup no longer allows them: "
        "`systemctl daemon-reload` "
        "rewrote it (systemd cgroup driver)",
        action="restart the container; lasting: give it the GPUs by CDI or by explicit device nodes, and create "
        "the /dev/char "
        "links (`nvidia-ctk system create-dev-char-symlinks`)",
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48, "
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"Failed to initialize NVML: (?P<what>Unknown Error|Insufficient Permissions)",
            r"NVMLError_(?P<what>Unknown|NoPermission)\b",
            r"(?P<what>CUDA unknown error) - this may be due to an incorrectly set up environment",
        ),
        leads_to=("no-device-type", "launch-failure"),
        unlike="`nvml-mismatch`: versions differ; `gpu-lost`: the driver lost the device, the host sees it too",
    ),
    TriageRule(
        id="killed",
        role="symptom",
        unlike="`cgroup-oom` and `host-oom`: the kernel log says why; `stopped-outside`: SIGTERM, with a word",
        title="the engine was killed by SIGKILL",
        cause="somebody killed it; when nobody did, the kernel's out-of-memory killer",
        action="look for `Out of memory: Killed process` in the kernel log (`dmesg`)",
        source="k3ctl, engine/supervisor.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"^\[k3ctl\] the engine was killed by SIGKILL",),
    ),
)
