"""NVLink, multicast, NCCL, names and networks."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 9, 30)

RULES = (
    TriageRule(
        id="no-shared-nvlink-domain",
        title="the nodes share no NVLink domain",
        cause="FlashInfer's all-reduce chose MNNVL although these nodes are joined by InfiniBand only",
        action="set compilation_config.pass_config.fuse_allreduce_rms=false, or run TP inside one NVLink "
        "domain",
        source="https://github.com/vllm-project/vllm/issues/51986",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        patterns=(r"\[fd_exchange\] timed out connecting",),
        leads_to=("gpu-oom", "capture-oom"),
    ),
    TriageRule(
        id="no-multicast",
        title="NVLink multicast does not work here",
        cause="the specialized decode exchanges through multicast memory over all ranks, and that could "
        "not be made",
        action="run `k3ctl doctor`: fabric manager, IMEX channel, one clique, no confidential computing",
        source="https://github.com/vllm-project/vllm/issues/50179; vLLM 0.33.0, specialized_decode/cutedsl",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        patterns=(
            r"Kimi K3 .* needs multicast memory",
            r"symmetric memory multicast operations are not supported",
            r"Device does not support multicasting",
            r"GEMM-RS/AR requires NVLink multicast memory",
            r"requires NVLS symmetric-memory multicast",
        ),
    ),
    TriageRule(
        id="nvls-hang",
        title="NCCL hangs in its NVLS set-up",
        cause="the ranks got to `NVLS tuning` and none finished its init; seen with NCCL 2.30.4 and "
        "newer on 8 × B300",
        action="load NCCL 2.28.9 (check what torch loads, not what pip lists; vLLM 0.33 runs without pynccl below "
        "2.29.7: "
        "no pipeline parallelism then); NCCL_NVLS_ENABLE=0 costs multicast",
        source="https://github.com/vast-ai/base-image/pull/233, https://github.com/NVIDIA/nccl/issues/2167",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        instead=((("nccl-old-enough",), "nvls-hang-old-nccl"),),
        unlike="`fabric-not-ready`: NCCL fails with 401 instead of hanging; `nvls-hang-old-nccl`: the NCCL of the "
        "advice is loaded",
    ),
    TriageRule(
        id="nvls-hang-old-nccl",
        title="NCCL {nccl} hangs in its NVLS set-up",
        cause="the ranks got to `NVLS tuning` and none finished its init; the known hang of NCCL 2.30.4 and newer "
        "is not it, "
        "since {nccl} is loaded here",
        action="run `k3ctl doctor` (fabric manager, IMEX, one clique); NCCL_NVLS_ENABLE=0 gets past it and costs "
        "multicast, "
        "which the specialized decode needs",
        source="https://github.com/NVIDIA/nccl/issues/2167, https://github.com/NVIDIA/nccl/issues/1788",
        checked=date(2026, 11, 30),
        expires=date(2027, 3, 31),
        unlike="`nvls-hang`: NCCL 2.30.4 or newer, or the log does not say",
    ),
    TriageRule(
        id="mnnvl-on",
        title="multi-node NVLink works: clique of {clique} = all {ranks} ranks",
        cause="NCCL's own report",
        action="nothing to do",
        source="https://github.com/verl-project/verl/pull/7564",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
    ),
    TriageRule(
        id="mnnvl-off",
        title="multi-node NVLink is off: {ranks} ranks on {nodes} nodes talk over the network",
        cause="usually NCCL_CUMEM_ENABLE=0 from a site profile, or no IMEX channel",
        action="unset NCCL_CUMEM_ENABLE and NCCL_MNNVL_ENABLE, and check /dev/nvidia-caps-imex-channels",
        source="https://github.com/vllm-project/vime/pull/103, "
        "https://github.com/vllm-project/vllm/pull/16992",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
        instead=((("one-board-gpus",), "mnnvl-none"),),
        unlike="`mnnvl-none`: these boards have no NVLink between nodes; `imex-domains`: MNNVL 1 and imports fail",
    ),
    TriageRule(
        id="mnnvl-none",
        title="{ranks} ranks on {nodes} nodes talk over the network: these GPUs have no NVLink between nodes",
        cause="NCCL's own report; on boards of eight it is as it should be",
        action="nothing to do; keep tensor parallelism inside a node",
        source="https://github.com/verl-project/verl/pull/7564",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        severity="info",
    ),
    TriageRule(
        id="imex-domains",
        title="IMEX: the ranks are in different NVLink or IMEX domains; memory handles cannot be imported",
        cause="the fabric's UUID and clique may agree and NCCL may say MNNVL 1; handles are shared only inside one "
        "IMEX domain",
        action="write one nodes_config with all trays (or one ComputeDomain), restart nvidia-imex everywhere, and "
        "check with "
        "`k3ctl doctor` over all trays",
        source="https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/892, "
        "https://github.com/meta-pytorch/torchcomms/pull/3517, https://github.com/pytorch/pytorch/pull/178989",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"cuMem(?:ImportFromShareableHandle|Map|RetainAllocationHandle).*?(?:invalid resource handle|invalid "
            r"(?:device )?handle)",
            r"Cuda failure (?:400 )?'invalid resource handle'",
        ),
        leads_to=("nccl-error", "nccl-warning", "mnnvl-on"),
        unlike="`imex-channel`: not permitted, the channel file is missing; `no-shared-nvlink-domain`: InfiniBand "
        "between the nodes",
    ),
    TriageRule(
        id="imex-channel",
        title="IMEX: fabric memory is not permitted here",
        cause="the IMEX channel (/dev/nvidia-caps-imex-channels/channel0) is missing, not readable, or not passed "
        "to the container",
        action="create the channel and pass it to the container (the same channel on every node), then run `k3ctl "
        "doctor`",
        source="https://github.com/microsoft/mscclpp/issues/467, https://github.com/NVIDIA/nccl/issues/1925",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"cuMem(?:Create|Export|Import)\w*.*?operation not permitted",
            r"Cuda failure (?:800 )?'operation not permitted'",
        ),
        leads_to=("nccl-error", "nccl-warning"),
        unlike="`imex-domains`: invalid handle, the channel works; `no-multicast`: no multicast even inside one node",
    ),
    TriageRule(
        id="nvlink-error",
        title="an NVLink error that could not be corrected",
        cause="CUDA reports what the driver found: a link, a GPU or a switch",
        action="look for Xid 74, 144–150 and SXid (`dmesg -T | grep -iE 'xid'`), give the kernel log to `k3ctl "
        "triage` too; drain "
        "the node and reset its GPUs",
        source="https://github.com/vllm-project/vllm/issues/40652",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"uncorrectable NVLink error",
            r"cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE",
        ),
        leads_to=("watchdog-ended", "nccl-error"),
        unlike="`gpu-hardware`: the kernel log names the GPU; `ecc-error`: its memory",
    ),
    TriageRule(
        id="ecc-error",
        title="a memory error of the GPU that could not be corrected",
        cause="CUDA reports an uncorrectable ECC error",
        action="look for Xid 48, 63, 64, 94, 95 (`dmesg -T | grep -i xid`); drain the node, reset the GPU, and "
        "replace it when the "
        "error comes back or row remapping fails",
        source="https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        patterns=(
            r"uncorrectable ECC error",
            r"cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorContained|CUDA_ERROR_CONTAINED",
        ),
        leads_to=("watchdog-ended", "nccl-error"),
        unlike="`nvlink-error`: the links",
    ),
    TriageRule(
        id="pynccl-off",
        title="vLLM runs without pynccl for {groups}",
        cause="0.33.0 needs NCCL 2.29.7 (`ncclCommSuspend`) and turns pynccl off without a word below it; "
        "VLLM_DISABLE_PYNCCL "
        "does the same",
        action="load NCCL 2.29.7 or newer (LD_PRELOAD, VLLM_NCCL_SO_PATH); `k3ctl doctor` prints which one is loaded",
        source="vLLM 0.33.0, distributed/device_communicators/pynccl.py",
        checked=date(2026, 11, 30),
        expires=date(2027, 3, 31),
        severity="warning",
        instead=((("pipeline-parallel", "no-k3-plugin"), "pynccl-off-pipeline"),),
        unlike="`pynccl-off-pipeline`: with pipeline parallelism and without k3ctl's plugin the answers are wrong",
    ),
    TriageRule(
        id="pynccl-off-pipeline",
        title="pipeline parallelism without pynccl: the answers are wrong",
        cause="0.33.0 needs NCCL 2.29.7 and turns pynccl off without a word below it; the pipeline's stages then "
        "order the wrong "
        "stream and read buffers that are not written: wrong tokens, later illegal memory accesses",
        action="load NCCL 2.29.7 or newer (LD_PRELOAD, VLLM_NCCL_SO_PATH) before serving anybody",
        source="vLLM 0.33.0, v1/worker/gpu/pp_utils.py; measured on two H200s, one run each",
        checked=date(2026, 11, 30),
        expires=date(2027, 3, 31),
        role="symptom",
        leads_to=("illegal-access-pynccl",),
        unlike="`illegal-access-pynccl`: it has crashed already",
    ),
    TriageRule(
        id="fabric-not-ready",
        title="the NVLink fabric is not ready",
        cause="fabric manager or partition is not up, or the fabric manager is not the driver's version",
        action="run `k3ctl doctor`; wait until the fabric state is Completed, then start again",
        source="https://github.com/NVIDIA/nccl/issues/1788, "
        "https://github.com/MiniMax-AI/MiniMax-M2.5/issues/9",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Cuda failure 401 'the operation cannot be performed in the present state'",
            r"Error 802: system not yet initialized",
        ),
        leads_to=("nccl-error", "nccl-warning"),
    ),
    TriageRule(
        id="dmabuf",
        title="RDMA cannot register GPU memory through dma-buf",
        cause="mlx5dv_reg_dmabuf_mr failed with errno 524: kernel or driver without dma-buf export",
        action="load nvidia-peermem and set NCCL_DMABUF_ENABLE=0; r580 driver or newer",
        source="https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        patterns=(r"mlx5dv_reg_dmabuf_mr failed.*errno 524",),
        leads_to=("nccl-error", "nccl-warning"),
    ),
    TriageRule(
        id="gloo-loopback",
        title="Gloo bound to loopback: this host's name does not resolve to an address of its own",
        cause="the other nodes cannot reach 127.0.0.1 here",
        action="make the host name resolve to the node's address, or set GLOO_SOCKET_IFNAME and "
        "NCCL_SOCKET_IFNAME",
        source="https://github.com/aws-samples/aws-do-eks/pull/50",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Unable to resolve hostname to a \(local\) address",),
        leads_to=("gloo-mesh",),
    ),
    TriageRule(
        id="gloo-mesh",
        title="the ranks could not connect to each other (Gloo)",
        cause="a rank listens where another one cannot reach it",
        action="check host names and GLOO_SOCKET_IFNAME on every node",
        source="https://github.com/aws-samples/aws-do-eks/pull/50",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Gloo connectFullMesh failed",),
    ),
    TriageRule(
        id="nccl-error",
        title="NCCL failed: {what}",
        cause="NCCL only says that something below it failed",
        action="read the NCCL WARN line above it; without one, start again with NCCL_DEBUG=INFO",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"NCCL error: (?P<what>\w[\w ]+)",
            r"NCCL error in: \S+(?:.*?, (?P<what>\w[\w ]+))?",
            r"nccl(?P<what>UnhandledCudaError|SystemError|InternalError|RemoteError|InvalidUsage|InvalidArgument)",
            r"NCCL (?:remote process exited|communicator was aborted)",
        ),
        role="symptom",
        slack_s=120.0,
        leads_to=("watchdog-ended",),
        unlike="`nccl-warning`: NCCL WARN says why; any cause on another rank wins over both",
    ),
    TriageRule(
        id="nccl-warning",
        title="NCCL: {text}",
        cause="NCCL's own warning, printed before it failed",
        action="act on that text; with NCCL_DEBUG=INFO the lines above it name host, interface and peer",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        role="symptom",
        slack_s=120.0,
        leads_to=("nccl-error", "watchdog-ended"),
        unlike="`nccl-error`: NCCL failed and no WARN line says why; a WARN without a failure is `nccl-remark`",
    ),
    TriageRule(
        id="nccl-remark",
        title="NCCL warns: {text}",
        cause="NCCL's own warning; nothing failed after it",
        action="nothing, while it works; look it up when it does not",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        checked=date(2026, 11, 30),
        expires=_EXPIRES,
        severity="info",
    ),
)
