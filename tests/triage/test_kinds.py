"""Kinds of failures, each in several wordings, with other ranks, numbers and versions."""

# ruff: noqa: E501 (log lines are as long as they are)
from __future__ import annotations

import re

import pytest

from k3ctl.triage.rules import all_rules
from k3ctl.triage.scan import scan_lines
from tests.triage.logs import END, FAILED_START, api, core, raised, start, worker

NIXL = "NIXL transfer failure: {} | Context: {{'failure_type': '{}', 'request_id': 'cmpl-{}', 'engine_id': 'aa'}}"


def many(ranks: range, exception: str, **how: str) -> list[str]:
    return [line for rank in ranks for line in raised(rank, exception, **how)]


# kind → (rule, texts that must be told, logs)
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
    "a binary without code for this GPU": (
        "no-kernel-image",
        ["official wheel or image", "cuobjdump", "architecture"],
        [
            [
                *start(),
                *many(
                    range(4),
                    "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
                ),
                *FAILED_START,
            ],
            [
                *start(),
                *raised(1, "RuntimeError: cudaErrorNoKernelImageForDevice: no kernel image is available"),
            ],
        ],
    ),
    "a compiler older than the GPU": (
        "jit-toolchain-old",
        ["TRITON_PTXAS_PATH", "CUDA 13"],
        [
            [
                *start(),
                *raised(
                    3, f"RuntimeError: PTXASError: Internal Triton PTX codegen error\n`ptxas` stderr:\n{line}"
                ),
                *FAILED_START,
            ]
            for line in (
                "ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'",
                "ptxas-blackwell fatal   : Value 'sm_100f' is not defined for option 'gpu-name'",
                "nvcc fatal   : Unsupported gpu architecture 'compute_103a'",
                "ptxas /tmp/t.ptx, line 5; fatal   : Unsupported .version 8.8; current version is '8.6'",
                "nvrtc: error: invalid value for --gpu-architecture (-arch)",
            )
        ]
        + [[*start(), *raised(0, "ValueError: Unknown CUDA arch (10.3) or GPU not supported")]],
    ),
    "no compiler": (
        "jit-toolchain-missing",
        ["flashinfer-jit-cache", "CUDA_HOME"],
        [
            [*start(), *raised(2, line), *FAILED_START]
            for line in (
                "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
                "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
                "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
                "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
            )
        ],
    ),
    "Ray has too few GPUs": (
        "ray-resources",
        ["ray status"],
        [
            [
                *start({"distributed_executor_backend": "ray"}),
                core(
                    "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds. See x",
                    level="ERROR",
                ),
                *FAILED_START,
            ],
            [
                *start(),
                core(
                    "ValueError: The number of required GPUs exceeds the total number of available GPUs in the cluster.",
                    level="ERROR",
                ),
            ],
        ],
    ),
    "a driver older than the toolkit": (
        "driver-too-old",
        ["r580"],
        [
            [
                *start(),
                *raised(0, "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)"),
            ],
            [
                *start(),
                *raised(
                    4,
                    "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
                ),
            ],
        ],
    ),
    "kernel artefacts cannot be fetched": (
        "artefacts-unreachable",
        ["flashinfer-cubin", "FLASHINFER_CUBIN_DIR"],
        [
            [
                *start(),
                worker(
                    2,
                    "2026-09-20 08:04:50,193 - WARNING - cubin_loader.py:231 - flashinfer.jit: Failed to download "
                    ".../x.cubin, retry 3/3",
                    level="WARNING",
                ),
                *raised(2, "AssertionError: KernelMetaInfo.h not found"),
                *FAILED_START,
            ],
            [*start(), *many(range(8), "AssertionError: BatchedGemmEnums.h not found"), *FAILED_START],
        ],
    ),
    "the hub cannot be reached": (
        "hub-unreachable",
        ["huggingface.co cannot be reached", "HF_HUB_OFFLINE=1"],
        [
            [
                *start(),
                api(
                    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
                    "exceeded with url: /x",
                    level="ERROR",
                ),
                api("huggingface_hub.errors.LocalEntryNotFoundError: An error happened", level="ERROR"),
            ],
        ],
    ),
    "Slurm's time limit": (
        "stopped-by-slurm",
        ["TIME LIMIT", "nobody crashed", "--time"],
        [
            [
                *start(served=served),
                core("[shutdown] EngineCore: trigger received signal=SIGTERM", "09:00:00"),
                *tail,
                line,
            ]
            for served in (True, False)
            for tail in ([], END)
            for line in (
                "slurmstepd: error: *** STEP 4711.0 ON gpu-node-01 CANCELLED AT 2026-09-20T09:00:00 DUE TO TIME LIMIT ***",
                "slurmstepd: error: *** JOB 99 ON n7 CANCELLED AT 2026-09-20T09:00:00 DUE TO TIME LIMIT ***",
            )
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
    "stopped by the kubelet while starting": (
        "stopped-by-kubernetes",
        ["tartup probe", "failureThreshold"],
        [
            [
                *start(),
                "Container vllm failed startup probe, will be restarted",
                api("[shutdown] x: received SIGTERM"),
            ],
            [
                *start(),
                core("[shutdown] EngineCore: trigger received signal=SIGTERM"),
                *FAILED_START,
                "Sep 20 08:06:00 n7 kubelet[9]: Startup probe failed: HTTP probe failed with statuscode: 503",
            ],
        ],
    ),
    "stopped by systemd": (
        "stopped-by-systemd",
        ["TimeoutStartSec"],
        [
            [*start(), "Sep 20 08:06:00 n7 systemd[1]: k3.service: start operation timed out. Terminating."],
            [
                *start(),
                "Sep 20 08:06:00 n7 systemd[1]: k3.service: Main process exited, code=killed, status=15/TERM",
            ],
        ],
    ),
    "a signal while starting": (
        "stopped-while-starting",
        ["before it served", "nobody crashed"],
        [
            [*start(), core("[shutdown] EngineCore: trigger received signal=SIGTERM"), *FAILED_START],
            [*start(), core("[shutdown] EngineCore: trigger received signal=SIGINT")],
            [
                *start(),
                "W0920 08:06:00.100000 71 torch/distributed/elastic/agent.py:1] Received 15 death signal, shutting down workers",
            ],
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
    "the nodes do not meet": (
        "rendezvous-timeout",
        ["192.0.2.10:29501"],
        [
            [
                *start({"nnodes": 2, "master_addr": "192.0.2.10"}),
                *raised(0, f"torch.distributed.{line}"),
                *FAILED_START,
            ]
            for line in (
                "DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (192.0.2.10, 29501).",
                "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
                "DistNetworkError: TCP client failed to connect/validate to host 192.0.2.10:29501 - timed out (try=1, timeout=600000ms)",
            )
        ],
    ),
    "a barrier while the other node tunes": (
        "barrier-while-tuning",
        ["still tuning", "autotune cache", "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"],
        [
            [
                *start({"nnodes": 2}),
                worker(
                    0,
                    "[AutoTuner]: Tuning trtllm::fused_moe::gemm1:  50%|#####     | 11/22 [06:15<07:51, 42.84s/profile]",
                    "08:08:05",
                    "INFO",
                ),
                *raised(1, f"RuntimeError: {line}", "08:38:05"),
                worker(0, "RuntimeError: Connection closed by peer [192.0.2.11]:45001", "08:38:06"),
                *FAILED_START,
            ]
            for line in (
                "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
                "Application timeout caused pair closure",
            )
        ],
    ),
    "a barrier without a reason": (
        "barrier-timeout",
        ["read the log of the rank or node that did not come"],
        [
            [*start({"nnodes": 2}), *raised(1, f"torch.distributed.{line}", "08:38:05"), *FAILED_START]
            for line in (
                "DistStoreError: wait timeout after 1800000ms, keys: /default_pg/0//2//cpu//0/2",
                "DistBackendError: Rank 3 failed to pass monitoredBarrier in 300000 ms",
            )
        ],
    ),
    "the head node is gone": (
        "head-gone",
        ["read node 0's log"],
        [
            [
                "(Headless pid=12) INFO 09-20 08:00:01 [a.py:1] version 0.33.0",
                f"[rank{rank}]:[W920 08:09:42.93 TCPStore.cpp:125] [c10d] {line}",
            ]
            for rank, line in (
                (
                    12,
                    "recvValue failed on SocketImpl(fd=1, addr=[n1]:5, remote=[n0]:4): Failed to recv, got 0 bytes. Connection "
                    "was likely closed. Did the remote server shutdown or crash?",
                ),
                (3, "sendBytes failed on SocketImpl(fd=1, addr=[n1]:5, remote=[n0]:4): Broken pipe"),
                (
                    9,
                    'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early)',
                ),
            )
        ],
    ),
    "processes are limited": (
        "process-limit",
        ["pids-limit", "ulimit -u"],
        [
            [*start(), *raised(6, f"{line}"), *FAILED_START]
            for line in (
                "RuntimeError: can't start new thread",
                "BlockingIOError: [Errno 11] Resource temporarily unavailable",
                "OpenBLAS blas_thread_init: pthread_create failed for thread 34 of 64: Resource temporarily unavailable",
                "libgomp: Thread creation failed: Resource temporarily unavailable",
                "/bin/sh: fork: retry: Resource temporarily unavailable",
            )
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
    "a shard is truncated": (
        "shard-truncated",
        [": model-00012-of-00096.safetensors", "fetch that shard again"],
        [
            [
                *start(),
                *raised(4, line, source='with safe_open("/m/model-00012-of-00096.safetensors") as f:'),
                *FAILED_START,
            ]
            for line in (
                "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
                "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
                "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
            )
        ],
    ),
    "a shard is missing": (
        "shard-missing",
        ["model-00077-of-00096.safetensors"],
        [
            [
                *start(),
                *raised(
                    4, 'FileNotFoundError: No such file or directory: "/m/model-00077-of-00096.safetensors"'
                ),
            ]
        ],
    ),
    "more ranks than GPUs": (
        "tp-larger-than-node",
        ["16 ranks are asked for", "8 GPUs", "--nnodes 2"],
        [
            [
                *start({"tensor_parallel_size": 16}),
                api(
                    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig",
                    level="ERROR",
                ),
                api(
                    "  Value error, World size (16) is larger than the number of available GPUs (8) in this node. If this is",
                    level="ERROR",
                ),
            ],
            [
                *start({"tensor_parallel_size": 16}),
                api("Tensor parallel size (16) exceeds available GPUs (8). x", level="WARNING"),
            ],
        ],
    ),
    "a retention interval off the blocks": (
        "retention-interval",
        ["prefix_cache_retention_interval 1000", "768 or 1536"],
        [
            [
                *start({"prefix_cache_retention_interval": 1000}),
                core(
                    "ValueError: prefix_cache_retention_interval (1000) must be non-negative and a multiple of "
                    "scheduler_block_size (768).",
                    level="ERROR",
                ),
                *FAILED_START,
            ],
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
    "an illegal access, prefix caching off on the command line": (
        "illegal-access",
        ["CUDA_LAUNCH_BLOCKING"],
        [
            [
                "$ vllm serve moonshotai/Kimi-K3 -tp 8 --no-enable-prefix-caching --port 8000",
                *raised(3, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
            ],
        ],
    ),
    "a Xid of the hardware": (
        "gpu-hardware",
        ["drain the node", "Xid"],
        [
            [f"[{at}.1] NVRM: Xid (PCI:0000:{bus}:00): {xid}, pid='<unknown>', name=<unknown>, x"]
            for at, bus, xid in (
                (1, "4b", 48),
                (2, "0a", 64),
                (3, "c3", 95),
                (4, "9d", 119),
                (5, "1b", 145),
                (6, "3f", 62),
            )
        ],
    ),
    "a Xid of a program": (
        "gpu-software-xid",
        ["not the board's"],
        [
            [
                "[Mon Sep 21 03:14:15 2026] NVRM: Xid (PCI:0000:4b:00): 31, pid=402, name=VLLM::Worker_TP2, MMU Fault: x"
            ],
            [
                "Sep 21 03:14:15 n7 kernel: NVRM: Xid (PCI:0000:4b:00): 43, pid=402, name=VLLM::Worker_TP2, Ch 00000010"
            ],
            [
                "kern  :err   : [ 99.1] NVRM: Xid (PCI:0000:4b:00): 31, pid=402, name=VLLM::Worker_TP2, MMU Fault"
            ],
        ],
    ),
    "a contained memory error": (
        "gpu-memory-remapped",
        ["reset the GPU"],
        [["[9.1] NVRM: Xid (PCI:0000:4b:00): 63, pid=1, Row Remapper: New row marked for remapping"]],
    ),
    "a Xid that nobody knows": (
        "xid-unknown",
        ["Xid 998"],
        [["[9.1] NVRM: Xid (PCI:0000:4b:00): 998, pid=1, something new"]],
    ),
    "a switch": (
        "nvswitch-error",
        ["SXid 20034"],
        [["[9.1] nvidia-nvswitch2: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"]],
    ),
    "a switch that corrected itself": (
        "nvswitch-warning",
        ["non-fatal SXid 12028"],
        [
            [
                "[9.1] nvidia-nvswitch2: SXid (PCI:0000:a9:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"
            ]
        ],
    ),
    "the container's memory limit": (
        "cgroup-oom",
        ["resources.limits.memory", "pid 402"],
        [
            [
                *start(),
                "[9.1] VLLM::Worker_TP invoked oom-killer: gfp_mask=0xcc0, order=0",
                "[9.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/kubepods/x,task=VLLM::Worker_TP,pid=402,uid=0",
                "[9.3] Memory cgroup out of memory: Killed process 402 (VLLM::Worker_TP) total-vm:9kB, anon-rss:104857600kB",
                core(
                    "Worker proc VllmWorker-2 died unexpectedly (exit code: -9), shutting down executor.",
                    level="ERROR",
                ),
                *FAILED_START,
            ],
        ],
    ),
    "the host's memory": (
        "host-oom",
        ["the host ran out of memory", "python3", "100 GiB"],
        [
            [
                "[9.3] Out of memory: Killed process 71 (python3) total-vm:9kB, anon-rss:104857600kB, file-rss:0kB"
            ]
        ],
    ),
    "two IMEX domains": (
        "imex-domains",
        ["nodes_config"],
        [
            [
                *start(),
                *raised(
                    9, "RuntimeError: CUDA error in cuMemImportFromShareableHandle: invalid resource handle"
                ),
                *FAILED_START,
            ]
        ],
    ),
    "no IMEX channel": (
        "imex-channel",
        ["/dev/nvidia-caps-imex-channels"],
        [["n1:5:6 [0] transport/p2p.cc:290 NCCL WARN Cuda failure 800 'operation not permitted'", *start()]],
    ),
    "no such interface": (
        "no-interface",
        ["ib7"],
        [
            [
                "n1:5:6 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib7",
                "n1:5:6 [0] bootstrap.cc:88 NCCL WARN Bootstrap : no socket interface found",
                *raised(0, "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)"),
            ],
            [
                *start(),
                *raised(
                    0,
                    "RuntimeError: [enforce fail at tcp/device.cc:84] rp != nullptr. Unable to find address for: ib7",
                ),
            ],
        ],
    ),
    "a start that ends without a word": (
        "ends-before-serving",
        ["loading weights"],
        [
            start(),
            [
                *start(),
                worker(
                    0,
                    "Loading safetensors checkpoint shards:  31% Completed | 30/96 [08:22<18:25]",
                    level="INFO",
                ),
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


@pytest.mark.parametrize(
    ("kind", "at"), [(kind, at) for kind, (*_, logs) in KINDS.items() for at in range(len(logs))]
)
def test_a_kind_is_known_in_all_its_wordings(kind, at):
    rule, texts, logs = KINDS[kind]
    report = scan_lines(logs[at], whole=True)
    main = report.incidents[0]
    told = f"{main.title}\n{main.cause}\n{main.action}\n" + "\n".join(main.evidence)
    assert main.rule.id == rule, [(i.rule.id, i.title, i.because) for i in report.incidents]
    for text in texts:
        assert text in told, told
    assert not re.search(r"\?(?!\w)", main.title) and "{" not in main.title


def renamed(lines: list[str]) -> list[str]:
    """Other ranks, pids and times: every worker two ranks further (of 16), four hours later."""

    def further(found: re.Match[str]) -> str:
        return f"(Worker_TP{(int(found[1]) + 2) % 16} pid={int(found[2]) + 5000})"

    moved = [re.sub(r"\(Worker_TP(\d+) pid=(\d+)\)", further, line) for line in lines]
    return [re.sub(r" 09-20 (\d\d):", lambda f: f" 09-20 {int(f[1]) + 4:02d}:", line) for line in moved]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_does_not_depend_on_ranks_pids_and_times(kind):
    rule, _, logs = KINDS[kind]
    if rule in ("host-oom", "cgroup-oom", "gpu-software-xid"):
        pytest.skip("names a pid")
    for log in logs:
        assert scan_lines(renamed(log), whole=True).incidents[0].rule.id == rule


def test_every_kind_that_looks_like_another_says_what_tells_them_apart():
    known = {rule.id for rule in all_rules()}
    by_id = {rule.id: rule for rule in all_rules()}
    for rule in {rule for rule, *_ in KINDS.values()}:
        for name in re.findall(r"`([a-z\-]+\d*)`", by_id[rule].unlike):
            assert name in known, f"{rule} is compared with {name}, which is no rule"
