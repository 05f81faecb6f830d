"""Values for the texts of rules that no pattern holds: computed from what it does hold and from the log's facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from k3ctl.triage.facts import Facts

STEP = 0.02


@dataclass(frozen=True)
class Seen:
    """What is known where a rule spoke."""

    values: Mapping[str, str]
    facts: Facts
    context: tuple[str, ...]
    """The traceback around its first line."""
    since: str
    """When that was, as the log writes it."""


def derived(rule: str, seen: Seen) -> dict[str, str]:
    """More values for ``rule``."""
    make = _MAKERS.get(rule)
    return make(seen) if make else {}


def _memory(seen: Seen) -> dict[str, str]:
    if (pinned := seen.facts.args.get("kv_cache_memory_bytes")) is not None:
        return {
            "advice": f"lower kv_cache_memory_bytes (now {pinned}) by 2 GiB: it is pinned, so "
            f"gpu_memory_utilization changes nothing"
        }
    now = seen.facts.args.get("gpu_memory_utilization")
    less = f" (now {now}: try {now - STEP:.2f})" if isinstance(now, float) and now > STEP else ""
    return {"advice": f"lower gpu_memory_utilization by 0.02{less}, or pin kv_cache_memory_bytes"}


def _serving_memory(seen: Seen) -> dict[str, str]:
    advice = _memory(seen)["advice"]
    return {"advice": advice.replace(", or pin kv_cache_memory_bytes", ", or max_num_batched_tokens")}


def _shard(seen: Seen) -> dict[str, str]:
    names = (re.search(r"[\w.\-]{1,120}\.safetensors\b", line) for line in reversed(seen.context))
    name = next((found[0] for found in names if found), "")
    return {"shard": f": {name}" if name else ""}


def _layout(seen: Seen) -> dict[str, str]:
    wanted, gpus = seen.values.get("wanted", ""), seen.values.get("gpus", "")
    more = {"wanted": wanted or str(seen.facts.world_size or "more"), "gpus": gpus or "fewer"}
    if wanted.isdigit() and gpus.isdigit() and int(gpus):
        nodes = -(-int(wanted) // int(gpus))
        more["advice"] = (
            f"start it on {nodes} nodes (`--nnodes {nodes} --node-rank R --master-addr NODE0` on each, "
            f"`--headless` on all but the "
            f"first), or set tensor_parallel_size={gpus}; if this node should have more GPUs: `nvidia-smi -L`, "
            f"CUDA_VISIBLE_DEVICES"
        )
    else:
        more["advice"] = (
            "start it on several nodes (`--nnodes`, `--node-rank`, `--master-addr`), or lower tensor_parallel_size "
            "to the GPUs of "
            "this node; if it should have more: `nvidia-smi -L`, CUDA_VISIBLE_DEVICES"
        )
    return more


def _interval(seen: Seen) -> dict[str, str]:
    interval, block = int(seen.values.get("interval", "0")), int(seen.values.get("block", "0"))
    if block <= 0:
        return {"advice": "set prefix_cache_retention_interval=0"}
    lower, upper = max(interval, 0) // block * block, -(-max(interval, 1) // block) * block
    near = f"{lower} or {upper}" if lower else f"{upper}"
    return {
        "advice": f"set prefix_cache_retention_interval={near} (multiples of {block}), or 0 for the default"
    }


def _transfer(seen: Seen) -> dict[str, str]:
    code = seen.values.get("code", "")
    return {"code": f" ({code})" if code else "", "since": seen.since or "the first failure"}


def _meeting(seen: Seen) -> dict[str, str]:
    host, port = seen.values.get("host"), seen.values.get("port")
    master = seen.facts.args.get("master_addr")
    address = (
        f"{host}:{port}"
        if host
        else f"{master}:{seen.facts.args.get('master_port', 29501)}"
        if master
        else "master_addr:port"
    )
    here, wanted = seen.values.get("here"), seen.values.get("all")
    return {"address": address, "joined": f", {here} of {wanted} came" if here else ""}


def _waited(seen: Seen) -> dict[str, str]:
    seconds = int(seen.values["ms"]) // 1000 if seen.values.get("ms", "").isdigit() else None
    ranks = seen.values.get("ranks") or seen.values.get("rank")
    return {
        "waited": f" after {seconds} s" if seconds else "",
        "missing": f": rank {ranks.strip()} did not come" if ranks else "",
    }


def _killed(seen: Seen) -> dict[str, str]:
    rss, pid = seen.values.get("rss_kb", ""), seen.values.get("pid", "")
    who = seen.facts.who_of_pid.get(int(pid)) if pid.isdigit() else None
    name = seen.values.get("process", "") or "a process"
    return {
        "rss": f"; it held {int(rss) / 1024 / 1024:.0f} GiB" if rss.isdigit() else "",
        "process": f"{name} = {who}" if who else name,
        "pid": pid or "unknown",
    }


def _interface(seen: Seen) -> dict[str, str]:
    gloo = "ifname" in seen.values
    variable = "GLOO_SOCKET_IFNAME" if gloo else "NCCL_SOCKET_IFNAME"
    name = seen.values.get("ifname") or seen.facts.interfaces.get(variable, "")
    return {"ifname": name.lstrip("=^") or "that was asked for", "variable": variable}


def _defaults(**texts: str) -> Callable[[Seen], dict[str, str]]:
    """Values for names that a pattern may leave empty."""

    def fill(seen: Seen) -> dict[str, str]:
        return {name: text for name, text in texts.items() if not seen.values.get(name)}

    return fill


def _frame(seen: Seen) -> dict[str, str]:
    """The innermost frame of the traceback: what lacks the code."""
    frames = (
        re.search(r'File "(?P<file>[^"]{1,300})", line \d{1,7}, in (?P<name>\w{1,80})', line)
        for line in reversed(seen.context)
    )
    frame = next((found for found in frames if found), None)
    return {"top": f": {frame['name']} in {frame['file'].rpartition('/')[2]}" if frame else ""}


def _groups(seen: Seen) -> dict[str, str]:
    return {
        "groups": "group " + ", ".join(sorted(seen.facts.pynccl_groups))
        if seen.facts.pynccl_groups
        else "its groups"
    }


def _nccl(seen: Seen) -> dict[str, str]:
    return {"nccl": seen.facts.nccl or "2.28"}


def _within(seen: Seen) -> dict[str, str]:
    seconds = seen.values.get("seconds")
    return {"within": f" within {seconds} s" if seconds else ""}


def _peer(seen: Seen) -> dict[str, str]:
    peer = seen.values.get("peer")
    return {"peer": f" ({peer})" if peer else ""}


_MAKERS: dict[str, Callable[[Seen], dict[str, str]]] = {
    "capture-oom": _memory,
    "gpu-oom": _serving_memory,
    "shard-truncated": _shard,
    "tp-larger-than-node": _layout,
    "retention-interval": _interval,
    "kv-transfer-lost": _transfer,
    "kv-blocks-expired": _defaults(seconds="the lease's"),
    "rendezvous-timeout": _meeting,
    "barrier-timeout": _waited,
    "barrier-while-tuning": _waited,
    "cgroup-oom": _killed,
    "host-oom": _killed,
    "no-interface": _interface,
    "no-kernel-image": _frame,
    "pynccl-off": _groups,
    "nvls-hang-old-nccl": _nccl,
    "ray-resources": _within,
    "jit-toolchain-old": _defaults(arch="its architecture"),
    "artefacts-unreachable": _defaults(host="FlashInfer's server"),
    "artefacts-missing-served": _defaults(host="FlashInfer's server"),
    "hub-unreachable": _defaults(host="the Hugging Face hub"),
    "head-gone": _defaults(remote="its address is not in the log"),
    "peer-closed": _peer,
    "nccl-error": _defaults(what="it does not say why"),
    "disk-full": _defaults(path="path not in the log"),
    "internal-port-in-use": _defaults(address="address not in the log"),
    "stopped-by-slurm": _defaults(why="cancelled"),
    "gpu-lost": _defaults(gpu="(address not in the log)"),
}
