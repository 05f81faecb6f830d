"""NVLink, multicast, NCCL, names and networks."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import Rule

_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 9, 30)

RULES = (
    Rule(
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
    Rule(
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
    Rule(
        id="nvls-hang",
        title="NCCL hangs in its NVLS set-up",
        cause="the ranks got to `NVLS tuning` and none finished its init; seen with NCCL 2.30.4 and "
        "newer on 8 × B300",
        action="load NCCL 2.28.9 (check what torch loads, not what pip lists); NCCL_NVLS_ENABLE=0 costs "
        "multicast",
        source="https://github.com/vast-ai/base-image/pull/233, https://github.com/NVIDIA/nccl/issues/2167",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
    ),
    Rule(
        id="mnnvl-on",
        title="multi-node NVLink works: clique of {clique} = all {ranks} ranks",
        cause="NCCL's own report",
        action="nothing to do",
        source="https://github.com/verl-project/verl/pull/7564",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="info",
    ),
    Rule(
        id="mnnvl-off",
        title="multi-node NVLink is off: {ranks} ranks on {nodes} nodes talk over the network",
        cause="usually NCCL_CUMEM_ENABLE=0 from a site profile, or no IMEX channel",
        action="unset NCCL_CUMEM_ENABLE and NCCL_MNNVL_ENABLE, and check /dev/nvidia-caps-imex-channels",
        source="https://github.com/vllm-project/vime/pull/103, "
        "https://github.com/vllm-project/vllm/pull/16992",
        checked=_CHECKED,
        expires=_EXPIRES,
        severity="warning",
    ),
    Rule(
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
        leads_to=("nccl-error",),
    ),
    Rule(
        id="dmabuf",
        title="RDMA cannot register GPU memory through dma-buf",
        cause="mlx5dv_reg_dmabuf_mr failed with errno 524: kernel or driver without dma-buf export",
        action="load nvidia-peermem and set NCCL_DMABUF_ENABLE=0; r580 driver or newer",
        source="https://github.com/vllm-project/recipes/blob/main/models/moonshotai/Kimi-K3.yaml",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        patterns=(r"mlx5dv_reg_dmabuf_mr failed.*errno 524",),
        leads_to=("nccl-error",),
    ),
    Rule(
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
    Rule(
        id="gloo-mesh",
        title="the ranks could not connect to each other (Gloo)",
        cause="a rank listens where another one cannot reach it",
        action="check host names and GLOO_SOCKET_IFNAME on every node",
        source="https://github.com/aws-samples/aws-do-eks/pull/50",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"Gloo connectFullMesh failed",),
    ),
    Rule(
        id="nccl-error",
        title="NCCL failed",
        cause="NCCL only says that something below it failed",
        action="read the NCCL WARN line above it; without one, start again with NCCL_DEBUG=INFO",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"NCCL error: (?P<what>\w[\w ]+)", r"ncclUnhandledCudaError", r"ncclSystemError"),
    ),
)
