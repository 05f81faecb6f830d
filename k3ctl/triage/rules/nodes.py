"""Between nodes and ranks: meeting, waiting for each other, losing each other."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 11, 30)
_EXPIRES = date(2027, 9, 30)
_TORCH = "PyTorch, torch/csrc/distributed/c10d"
_TUNING = "https://github.com/getainode/ainode/issues/134, https://github.com/getainode/ainode/pull/136"

RULES = (
    TriageRule(
        id="no-interface",
        title="the network interface {ifname} does not exist on this node",
        cause="{variable} names no interface of this node: names differ between nodes, or it is missing in the "
        "container",
        action="set {variable} to an interface that exists on every node (the one with the default route: `ip "
        "route`), or unset "
        "it",
        source="https://github.com/marin-community/marin/issues/6940, https://github.com/NVIDIA/nccl/issues/1837",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Bootstrap ?: no socket interface found",
            r"No (?:socket )?interface found",
            r"Unable to find address for: (?P<ifname>\S+)",
            r"no such (?:network )?interface:? '?(?P<ifname>[\w.@\-]+)",
        ),
        leads_to=("nccl-error", "nccl-warning", "gloo-mesh"),
        unlike="`gloo-loopback`: the interface exists and is loopback; `rendezvous-timeout`: it exists and the "
        "peer does not answer",
    ),
    TriageRule(
        id="collective-timeout",
        title="a collective timed out on rank{reporting}: {silent}",
        cause="{op} number {seq} did not finish in {seconds} s; the ranks that report it waited for the one that "
        "does not",
        action="{advice}",
        source=f"{_TORCH}/ProcessGroupNCCL.cpp",
        checked=_CHECKED,
        expires=_EXPIRES,
        role="symptom",
        slack_s=5.0,
        leads_to=("head-gone", "watchdog-ended"),
        unlike="`nccl-error`: a call failed, nothing waited; `barrier-timeout`: the CPU's group (Gloo), at the start",
    ),
    TriageRule(
        id="watchdog-ended",
        title="the NCCL watchdog ended its process",
        cause="it ends the process when a collective failed or timed out, whoever is to blame",
        action="read the first error of the other ranks",
        source=f"{_TORCH}/ProcessGroupNCCL.cpp",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"[Ww]atchdog thread (?:is )?(?:terminated with exception|got stuck)(?!.*CUDA error: \w)",
            r"terminate called after throwing an instance of 'c10::DistBackendError'",
            r"Received a dump signal due to a collective timeout",
            r"To avoid data inconsistency, we are taking the entire process down",
            r"Some NCCL operations have failed or timed out",
        ),
        role="report",
    ),
    TriageRule(
        id="rendezvous-timeout",
        title="the nodes did not meet: {address}{joined}",
        cause="a node waited for the others at the start and gave up: the address or port is wrong or closed, or "
        "another node "
        "never started or failed first",
        action="start all nodes within the time limit; check from every node that {address} answers (`nc -vz HOST "
        "PORT`), that "
        "master_addr is no loopback address and that nnodes and node_rank are right; read the missing node's log",
        source="https://github.com/vllm-project/vllm/issues/19670, https://github.com/OpenRLHF/OpenRLHF/issues/1040",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"client socket has timed out after .*? while trying to connect to \((?P<host>[^,()\s]+), "
            r"?(?P<port>\d+)\)",
            r"TCP client failed to connect/validate to host (?P<host>[^:\s]+):(?P<port>\d+)",
            r"Timed out after \d+ seconds waiting for clients\. (?P<here>\d+)/(?P<all>\d+) clients joined",
            r"client socket has failed to connect to (?:any network address of )?[\[(](?P<host>[^,\]()\s]+)[,\]] "
            r"?:?(?P<port>\d+)",
            r"RendezvousTimeoutError",
        ),
        role="symptom",
        slack_s=5.0,
        unlike="`barrier-timeout`: they had met; `head-gone`: they had met, and one left",
    ),
    TriageRule(
        id="ray-resources",
        title="Ray could not give the GPUs that are asked for{within}",
        cause="the cluster has fewer free GPUs than tensor × pipeline parallelism, a node has not joined, or an "
        "older job holds "
        "them",
        action="`ray status` and `ray list nodes` name what is missing; start the missing node, end the older job, "
        "or lower "
        "tensor_parallel_size",
        source="vLLM 0.33.0, v1/executor/ray_utils.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Cannot provide a placement group of .*? within (?P<seconds>\d+) seconds",
            r"Tensor parallel size may exceed available GPUs",
            r"number of required GPUs exceeds the total number of available GPUs",
        ),
        unlike="`rendezvous-timeout`: the processes ran and did not meet; `tp-larger-than-node`: one node, without "
        "Ray",
    ),
    TriageRule(
        id="barrier-timeout",
        title="ranks waited for each other and gave up{waited}{missing}",
        cause="one rank did not come to a barrier in time (the CPU group's limit is 30 minutes); nothing in this "
        "log says what it "
        "did meanwhile",
        action="read the log of the rank or node that did not come; if it was loading or compiling, bring the "
        "nodes to the same "
        "storage and caches",
        source="https://github.com/vllm-project/vllm/issues/52907, https://github.com/vllm-project/vllm/issues/12526",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation",
            r"Application timeout caused pair closure",
            r"(?:wait|barrier) timeout after (?P<ms>\d+)ms, keys?:",
            r"waitForInput: socket .*? timed out after (?P<ms>\d+)ms",
            r"(?:Ranks?|ranks?) (?P<ranks>[\d, ]+) (?:have )?failed to pass monitoredBarrier in (?P<ms>\d+) ?ms",
            r"Rank (?P<rank>\d+) successfully reached monitoredBarrier, but received errors",
            r"Barrier (?:departure )?timed out after (?P<s>[\d.]+) seconds",
        ),
        role="symptom",
        slack_s=5.0,
        leads_to=("peer-closed", "head-gone"),
        instead=((("tuning",), "barrier-while-tuning"),),
        unlike="`barrier-while-tuning`: kernels were being tuned; `collective-timeout`: NCCL, on the GPU",
    ),
    TriageRule(
        id="barrier-while-tuning",
        title="ranks gave up at a barrier while another node was still tuning its kernels{waited}{missing}",
        cause="FlashInfer's autotuning ran longer on one node (no cached results) than the others wait (30 minutes "
        "in the CPU "
        "group)",
        action="copy the autotune cache of the node that was ready (VLLM_CACHE_ROOT, flashinfer_autotune_cache) to "
        "every node, or "
        "share it (VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR); check in the next log that the node reads it",
        source=f"{_TUNING}; vLLM 0.33.0, warmup/flashinfer_autotune_cache.py",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        role="symptom",
        slack_s=5.0,
        leads_to=("peer-closed", "head-gone"),
        unlike="`slow-not-hung`: nobody gave up yet; copying did not help one reporter whose cache keys differed "
        "between nodes",
    ),
    TriageRule(
        id="rpc-timeout",
        title="a worker did not answer `{method}` in time",
        cause="the engine core waited for a step longer than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300 s)",
        action="read what the workers did: a hang (`py-spy dump`), a collective that waits for one rank, or a "
        "compilation",
        source="vLLM 0.33.0, v1/executor/multiproc_executor.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"RPC call to (?P<method>\w+) timed out",),
        role="symptom",
        slack_s=5.0,
        instead=((("tuning", "served-after"), "rpc-timeout-tuning"), (("tuning",), "rpc-timeout-tuning")),
        unlike="`hung`: vLLM still warns and has not given up",
    ),
    TriageRule(
        id="rpc-timeout-tuning",
        title="a worker did not answer `{method}` in time: kernels were being tuned",
        cause="the first tuning takes longer than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300 s)",
        action="set VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800 for the first start, and keep the autotune cache",
        source="https://github.com/vllm-project/vllm/pull/54794; vLLM 0.33.0, envs.py",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        role="symptom",
        slack_s=5.0,
    ),
    TriageRule(
        id="head-gone",
        title="the head node went away: the connection to its store was lost ({remote})",
        cause="rank 0's process on node 0 ended or its host vanished; this node only lost the connection",
        action="read node 0's log for the first error (`k3ctl triage node0.log node1.log`); without one, look "
        "whether the host "
        "lives",
        source=f"https://github.com/vllm-project/vllm/issues/13354; {_TORCH}/TCPStore.cpp",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?:recvValue|sendBytes|recvBytes|recvVector) failed on "
            r"SocketImpl\(.{0,120}?remote=(?P<remote>\[?[^\s)]+)\)",
            r"Failed to (?:recv|send), (?:got|sent) 0 bytes\. Connection was likely closed",
            r"Failed to check the \"should dump\" flag on TCPStore",
            r"TCPStore server has shut down too early",
            r"Did the remote server shutdown or crash",
        ),
        role="symptom",
        slack_s=120.0,
        unlike="`rendezvous-timeout`: they never met; `peer-closed`: any rank, not the store of node 0",
    ),
    TriageRule(
        id="peer-closed",
        title="another rank closed its connection{peer}",
        cause="its process ended first; this one only noticed",
        action="read that rank's log for the first error",
        source="PyTorch, gloo/transport/tcp/pair.cc",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Connection closed by peer \[(?P<peer>[^\]]+)\]",
            r"(?:[Gg]loo|transport/tcp|c10d|NCCL).*?(?:Connection reset by peer|Broken pipe|Connection refused)",
            r"[Ss]ocket closed by (?:remote )?peer|remote process exited or there was a network error",
        ),
        role="report",
        unlike="`head-gone`: the store of node 0",
    ),
)
