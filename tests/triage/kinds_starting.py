"""Kinds of faults before an engine serves, and around it: kind → (rule, texts that must be told, logs)."""

# ruff: noqa: E501 – lines of logs

from __future__ import annotations

from tests.triage.logs import END, FAILED_START, api, core, many, raised, start, worker

KINDS: dict[str, tuple[str, list[str], list[list[str]]]] = {
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
}
