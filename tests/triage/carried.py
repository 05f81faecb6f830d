"""Carriers for tests: each turns the lines of a log into what a launcher, runtime or journal makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

Wrap = Callable[[int, str], str]
COLOURED = "\x1b[1;36m{}\x1b[0;0m"


def colours(_: int, line: str) -> str:
    """As vLLM writes on a terminal: the process in colour, the line cleared to its end."""
    head, closing, rest = line.partition(") ")
    return (
        COLOURED.format(head + closing) + rest + "\x1b[K"
        if closing and line.startswith("(")
        else line + "\x1b[K"
    )


def journal_json(_: int, line: str) -> str:
    """`journalctl -o json`: plain text as a string."""
    return json.dumps(
        {"_HOSTNAME": "node7", "__REALTIME_TIMESTAMP": "1758355201000000", "MESSAGE": line, "_PID": "71"}
    )


def journal_bytes(at: int, line: str) -> str:
    """`journalctl -o json`: a line with colours is a list of bytes."""
    return json.dumps({"_HOSTNAME": "node7", "MESSAGE": list(colours(at, line).encode()), "_PID": "71"})


def docker_json(_: int, line: str) -> str:
    """docker's json-file, with its own escapes of <, > and &."""
    text = json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-09-20T08:00:01.123456789Z"})
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


CARRIERS: dict[str, Wrap] = {
    "srun -l": lambda at, line: f"{at % 4}: {line}",
    "srun -l, many tasks": lambda at, line: f"{at % 16:>2}: {line}",
    "mpirun --tag-output": lambda at, line: f"[1,{at % 8}]<stderr>: {line}",
    "pdsh": lambda _, line: f"gpu-node-07: {line}" if line.startswith("(") else line,
    "torchrun": lambda at, line: f"[default{at % 8}]:{line}",
    "ray": lambda _, line: f"(RayWorkerWrapper pid=4711, ip=192.0.2.14) {line}",
    "ray, many": lambda _, line: f"\x1b[36m(RayWorkerProc pid=4711)\x1b[0m {line}",
    "kubectl --prefix": lambda _, line: f"[pod/k3-0/vllm] {line}",
    "kubectl --timestamps": lambda _, line: f"2026-09-20T08:00:01.123456789Z {line}",
    "kubectl --prefix --timestamps": lambda _, line: f"[pod/k3-0/vllm] 2026-09-20T08:00:01.123456789Z {line}",
    "cri": lambda _, line: f"2026-09-20T08:00:01.123456789+02:00 stderr F {line}",
    "compose": lambda _, line: f"vllm-1  | {line}",
    "compose, older": lambda _, line: f"k3_vllm_1    | {line}",
    "swarm": lambda _, line: f"k3_vllm.1.abc123@gpu-node-07    | {line}",
    "docker json-file": docker_json,
    "journald short": lambda _, line: f"Sep 20 08:00:01 gpu-node-07 vllm[4101]: {line}",
    "journald short-precise": lambda _, line: f"Sep 20 08:00:01.123456 gpu-node-07 k3-serve.sh[4101]: {line}",
    "journald short-iso": lambda _, line: f"2026-09-20T08:00:01+0000 gpu-node-07 vllm[4101]: {line}",
    "journald short-full": lambda _, line: f"Sun 2026-09-20 08:00:01 UTC gpu-node-07 vllm[4101]: {line}",
    "journald json": journal_json,
    "journald json, colours": journal_bytes,
    "syslog": lambda _, line: f"<30>Sep 20 08:00:01 gpu-node-07 docker[811]: {line}",
    "colours": colours,
    "crlf": lambda _, line: line + "\r",
    "compose under journald": lambda _, line: f"Sep 20 08:00:01 gpu-node-07 docker[811]: vllm-1  | {line}",
    "srun in a pod": lambda at, line: f"[pod/k3-0/vllm] {at % 4}: {line}",
    "colours in json": lambda at, line: docker_json(at, colours(at, line)),
}
LABELS_WITH_RANK = {"srun -l", "srun -l, many tasks", "mpirun --tag-output", "torchrun", "srun in a pod"}


def carried(carrier: str, lines: Iterable[str]) -> list[str]:
    """The lines as ``carrier`` writes them."""
    wrap = CARRIERS[carrier]
    return [wrap(at, line) for at, line in enumerate(lines)]
