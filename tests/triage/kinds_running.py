"""Kinds of faults while an engine serves: kind → (rule, texts that must be told, logs)."""

# ruff: noqa: E501 – lines of logs

from __future__ import annotations

from tests.triage.logs import END, FAILED_START, api, core, raised, start, worker

NIXL = "NIXL transfer failure: {} | Context: {{'failure_type': '{}', 'request_id': 'cmpl-{}', 'engine_id': 'aa'}}"

KINDS: dict[str, tuple[str, list[str], list[list[str]]]] = {
    "the prefill is gone": (
        "kv-transfer-lost",
        [
            "restart the decode engine",
            "answers since then may be garbage",
            "kv_load_failure_policy=fail does not help",
        ],
        [
            [*start(served=True), worker(3, NIXL.format("transfer_failed", "transfer_failed", 4))],
            [
                *start(served=True),
                worker(0, "nixl_cu12._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT"),
            ],
            [*start(served=True), worker(1, "pulling kv_caches for ['a', 'b'] failed: peer closed")],
            [
                *start(served=True),
                worker(1, "Sending to 192.0.2.4:14579 failed (ret=-1) after 2 s (3 descriptors, 9 bytes)"),
            ],
        ],
    ),
    "the handshake reaches another engine": (
        "kv-wrong-engine",
        ["VLLM_NIXL_SIDE_CHANNEL_HOST", "expected (46126a31-6b81_dp0)"],
        [
            [
                *start(served=True),
                *raised(
                    0,
                    "RuntimeError: Remote NIXL agent engine ID mismatch. Expected 46126a31-6b81_dp0,received 96b1c4ff-9edf_dp0.",
                ),
                worker(0, NIXL.format("handshake_failed", "handshake_failed", 1)),
                worker(0, "Handshake failed for request cmpl-1"),
            ],
        ],
    ),
    "prefill and decode do not fit together": (
        "kv-incompatible",
        ["same image and profile"],
        [
            [
                *start(served=True),
                *raised(2, "RuntimeError: NIXL compatibility hash mismatch. Local: ab, Remote: cd. x"),
            ]
        ],
    ),
    "the handshake fails": (
        "kv-handshake-failed",
        ["side channel"],
        [
            [*start(served=True), worker(5, NIXL.format("handshake_failed", "handshake_failed", 7))],
            [
                *start(served=True),
                worker(5, NIXL.format("push_handshake_failed", "push_handshake_failed", 7)),
            ],
        ],
    ),
    "preempted by Slurm": (
        "stopped-by-slurm",
        ["PREEMPTION"],
        [
            [
                *start(served=True),
                "slurmstepd: error: *** JOB 99 ON n7 CANCELLED AT 2026-09-20T09:00:00 DUE TO PREEMPTION ***",
            ]
        ],
    ),
    "a signal while serving": (
        "stopped-outside",
        ["nobody crashed", "journalctl"],
        [
            [
                *start(served=True),
                core(f"[shutdown] EngineCore: trigger received signal={name}", "09:00:00"),
                *END,
            ]
            for name in ("SIGTERM", "SIGINT", "SIGHUP")
        ],
    ),
    "the container lost its GPUs": (
        "container-lost-gpus",
        ["restart the container", "CDI"],
        [
            ["Failed to initialize NVML: Unknown Error", *start()],
            [*start(served=True), worker(1, "pynvml.NVMLError_Unknown: Unknown Error")],
            ["Failed to initialize NVML: Insufficient Permissions"],
        ],
    ),
    "a collective waits for one rank": (
        "collective-timeout",
        ["rank 5 is silent", "look at rank 5"],
        [
            [
                *start(served=True),
                *(
                    f"[rank{rank}]:[E920 09:14:11.000 ProcessGroupNCCL.cpp:683] [PG ID 2 PG GUID 3(tp:0) Rank {rank}] Watchdog "
                    f"caught collective operation timeout: WorkNCCL(SeqNum=31, OpType={op}, NumelIn=1, NumelOut=1, "
                    "Timeout(ms)=600000) ran for 600070 milliseconds before timing out."
                    for rank in (7, 0, 3, 1, 2, 4, 6)
                ),
                *END,
            ]
            for op in ("ALLREDUCE", "BROADCAST", "_ALLGATHER_BASE")
        ],
    ),
    "a collective whose ranks disagree": (
        "collective-timeout",
        ["rank 2 is behind the others"],
        [
            [
                *start({"tensor_parallel_size": 4}, served=True),
                *(
                    f"[rank{rank}]:[E920 09:14:11.000 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation "
                    f"timeout: WorkNCCL(SeqNum={30 if rank == 2 else 31}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
                    "Timeout(ms)=600000) ran for 600070 milliseconds before timing out."
                    for rank in range(4)
                ),
            ],
        ],
    ),
    "files are limited": (
        "file-limit",
        ["LimitNOFILE"],
        [
            [*start(served=True), *raised(0, "OSError: [Errno 24] Too many open files: '/dev/shm/x'")],
            [*start(), api("zmq.error.ZMQError: Too many open files", level="ERROR")],
        ],
    ),
    "pynccl is off": (
        "pynccl-off",
        ["NCCL 2.29.7 or newer", "tp:0"],
        [
            [
                *start(served=True),
                worker(
                    0,
                    "Using ['CUSTOM', 'SYMM_MEM'] all-reduce backends (in dispatch order) for group 'tp:0' out of potential "
                    "backends: ['NCCL_SYMM_MEM', 'CUSTOM', 'SYMM_MEM', 'PYNCCL'].",
                    level="INFO",
                ),
            ],
        ],
    ),
    "pynccl is off with pipeline parallelism": (
        "pynccl-off-pipeline",
        ["the answers are wrong"],
        [
            [
                *start({"pipeline_parallel_size": 2}, served=True),
                worker(
                    0,
                    "Using ['SYMM_MEM'] all-reduce backends (in dispatch order) for group 'tp:0' out of potential "
                    "backends: ['SYMM_MEM', 'PYNCCL'].",
                    level="INFO",
                ),
            ],
        ],
    ),
    "an illegal access for want of pynccl": (
        "illegal-access-pynccl",
        ["load NCCL 2.29.7", "suspect"],
        [
            [
                *start({"pipeline_parallel_size": 2}, served=True),
                "n1:5:6 [0] NCCL INFO NCCL version 2.28.9+cuda13.0",
                *raised(0, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
                *END,
            ],
        ],
    ),
    "an illegal access with ReplaySSM": (
        "illegal-access-replayssm",
        ["use_replayssm=false"],
        [
            [
                *start({"enable_prefix_caching": False, "use_replayssm": True}, served=True),
                *raised(3, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
            ],
        ],
    ),
    "an error that no rule knows": (
        "unknown-error",
        ["no rule knows this error"],
        [
            [*start(), *raised(5, "KeyError: 'model.layers.3.weird'"), *FAILED_START],
            [*start(served=True), *raised(5, "RuntimeError: a thing went wrong"), *END],
        ],
    ),
}
