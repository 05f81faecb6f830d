"""What the log says about itself: arguments, versions, GPUs, progress. Rules look here before they speak."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from k3ctl.facts.products import PRODUCTS, Kind
from k3ctl.triage.records import Record

PYNCCL_NEEDS = Version("2.29.7")
"""vLLM 0.33.0 binds ``ncclCommSuspend``, which NCCL has from here on."""

_VERSION = re.compile(r"(?:\bversion |LLM engine \(v)(\d{1,4}\.\d{1,4}[\w.+]{0,80})")
_NCCL = re.compile(r"(?:using nccl==|NCCL version )(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_RACK = {row.chip for row in PRODUCTS.values() if row.kind is Kind.NVL72}
_HOPPER = {row.chip for row in PRODUCTS.values() if row.capability[0] == 9}
_CHIPS = {row.chip for row in PRODUCTS.values()} | {
    "A100",
    "A800",
    "L40S",
}  # too old to serve K3, yet logs name them
_GPU = re.compile(rf"\b({'|'.join(sorted(_CHIPS, key=len, reverse=True))})\b".replace("-", "[- ]"))
_BACKENDS = re.compile(
    r"Using \[(?P<on>[^\]]{0,300})\] all-reduce backends.{0,80}?for group '(?P<group>[^']{0,60})'"
    r".{0,60}?potential backends: \[(?P<all>[^\]]{0,300})\]"
)
_IFNAME = re.compile(r"(?P<name>(?:NCCL|GLOO)_SOCKET_IFNAME) set by environment to (?P<value>\S{1,80})")
_TUNING = re.compile(r"\[AutoTuner\]|[Aa]utotun(?:e|ing)")
_TUNED = re.compile(r"[Aa]utotuning process ends|[Aa]utotun\w{0,6} (?:done|finished|completed)")
_ARGUMENT = re.compile(
    r"'(?P<name>\w{1,60})': (?P<value>True|False|None|-?\d{1,12}(?:\.\d{1,6})?|'[^']{0,200}')"
)
_CONFIG = re.compile(
    r"\b(?P<name>[a-z]\w{1,60})=(?P<value>True|False|None|-?\d{1,12}(?:\.\d{1,6})?|'[^']{0,200}')"
)
_FLAG = re.compile(r"(?<=\s)--?(?P<name>[a-z][\w\-]{0,60})(?:[= ](?P<value>(?!-)[^\s'\"{}]{1,120}))?")
MAX_PIDS = 4096
SERVING = ("startup complete", "Avg prompt throughput", 'HTTP/1.1" 2')
"""Texts that only a server that is ready prints."""
_SHORT = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dcp": "decode_context_parallel_size"}
_KNOWN_CONFIG = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_prefix_caching",
        "use_replayssm",
        "kv_cache_dtype",
        "trust_remote_code",
        "enforce_eager",
    }
)


class Facts:
    """Collects, line by line. What was not said stays unknown (None)."""

    MARKS = (
        "version ",
        "engine (v",
        "non-default args",
        "with config:",
        "nccl==",
        "all-reduce backends",
        "set by environment",
        "startup complete",
        "throughput",
        "hutting down",
        "HTTP server shutdown",
        "vllm serve",
        "utoTun",
        "utotun",
        "NVIDIA ",
        "k3_runtime",
        "Unknown Error",
    )

    def __init__(self) -> None:
        self.vllm = ""
        self.nccl = ""
        self.gpus: set[str] = set()
        self.args: dict[str, Any] = {}
        self.args_known = False
        self.pynccl_off: Record | None = None
        self.pynccl_groups: set[str] = set()
        self.interfaces: dict[str, str] = {}
        self.started: Record | None = None
        self.served: Record | None = None
        self.stopping: Record | None = None
        self.k3_plugin = False
        self.tuning: Record | None = None
        self.tuned = False
        self.who_of_pid: dict[int, str] = {}
        self._takers: tuple[tuple[str, Callable[[str, Record], None]], ...] = (
            ("version ", self._versions),
            ("engine (v", self._versions),
            ("nccl==", self._versions),
            ("non-default args:", self._arguments),
            ("non-default args:", self._progress),
            ("with config:", self._config),
            ("engine (v", self._progress),
            ("vllm serve", self._command),
            ("all-reduce backends", self._backends),
            ("set by environment", self._interface),
            ("startup complete", self._progress),
            ("Avg prompt throughput", self._progress),
            ('HTTP/1.1" 2', self._progress),
            ("Shutting down", self._progress),
            ("HTTP server shutdown", self._progress),
            ("utoTun", self._tuning),
            ("utotun", self._tuning),
            ("NVIDIA ", self._devices),
            ("k3_runtime", self._plugin),
        )

    def see(self, record: Record) -> None:
        """Take in one record."""
        text = record.text
        if record.pid is not None and record.who and len(self.who_of_pid) < MAX_PIDS:
            self.who_of_pid[record.pid] = record.who
        for mark, take in self._takers:
            if mark in text:
                take(text, record)

    def _progress(self, text: str, record: Record) -> None:
        """How far the server is."""
        if self.started is None and ("non-default args" in text or "LLM engine (v" in text):
            self.started = record
        if self.served is None and any(sign in text for sign in SERVING):
            self.served = record
        if self.stopping is None and ("HTTP server shutdown" in text or "Shutting down" in text):
            self.stopping = record

    def _versions(self, text: str, _: Record) -> None:
        if not self.vllm and "NCCL version" not in text and (found := _VERSION.search(text)):
            self.vllm = found[1].rstrip(".")
        if not self.nccl and (found := _NCCL.search(text)):
            self.nccl = found[1]

    def _arguments(self, text: str, _: Record) -> None:
        self.args_known = True
        text = text.partition("non-default args:")[2]
        try:
            args = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            # cut or not plain: what can be read of it
            args = {found["name"]: ast.literal_eval(found["value"]) for found in _ARGUMENT.finditer(text)}
        if isinstance(args, Mapping):
            self.args.update(args)

    def _config(self, text: str, _: Record) -> None:
        for found in _CONFIG.finditer(text.partition("with config:")[2]):
            if found["name"] in _KNOWN_CONFIG:
                self.args.setdefault(found["name"], ast.literal_eval(found["value"]))

    def _command(self, text: str, _: Record) -> None:
        self.args_known = True
        for found in _FLAG.finditer(text.partition("vllm serve")[2]):
            name, value = found["name"].replace("-", "_"), found["value"]
            name = _SHORT.get(name, name)
            if value is None:
                self.args.setdefault(name.removeprefix("no_"), not name.startswith("no_"))
            else:
                self.args.setdefault(name, int(value) if value.isdigit() else value)

    def _backends(self, text: str, record: Record) -> None:
        found = _BACKENDS.search(text)
        if found and "PYNCCL" in found["all"] and "PYNCCL" not in found["on"]:
            self.pynccl_off = self.pynccl_off or record
            self.pynccl_groups.add(found["group"])

    def _tuning(self, text: str, record: Record) -> None:
        if _TUNED.search(text):
            self.tuned = True
        elif _TUNING.search(text):
            self.tuning = self.tuning or record

    def _interface(self, text: str, _: Record) -> None:
        if found := _IFNAME.search(text):
            self.interfaces.setdefault(found["name"], found["value"])

    def _devices(self, text: str, _: Record) -> None:
        self.gpus |= {name.replace(" ", "-") for name in _GPU.findall(text)}

    def _plugin(self, _text: str, _: Record) -> None:
        self.k3_plugin = True

    def number(self, name: str) -> int | None:
        """An argument that is a whole number."""
        value = self.args.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def world_size(self) -> int | None:
        """Ranks of one engine, from the arguments."""
        tensor = self.number("tensor_parallel_size")
        return tensor * (self.number("pipeline_parallel_size") or 1) if tensor else None

    @property
    def specialized(self) -> bool:
        """Whether the arguments ask for the specialized decode."""
        extra = self.args.get("additional_config")
        return isinstance(extra, Mapping) and extra.get("decode_backend") == "latency_specialized"

    @property
    def speculative_tokens(self) -> int:
        """Drafted tokens per step; 0 without speculation, or when the log does not say."""
        config = self.args.get("speculative_config")
        number = config.get("num_speculative_tokens") if isinstance(config, Mapping) else None
        return number if isinstance(number, int) else 0

    def version_is(self, name: str, limit: Version) -> bool | None:
        """Whether the version of ``vllm`` or ``nccl`` is below ``limit``; None when it is unknown."""
        try:
            return Version(getattr(self, name)) < limit
        except InvalidVersion:
            return None


def _v33(facts: Facts) -> bool:
    return not facts.vllm or facts.vllm.startswith("0.33")


CONDITIONS: dict[str, tuple[str, Callable[[Facts, Record], bool | None]]] = {
    "prefix-caching-off": (
        "the arguments turn prefix caching off",
        lambda facts, _: facts.args.get("enable_prefix_caching") is False,
    ),
    "replayssm-on": (
        "the arguments turn ReplaySSM on",
        lambda facts, _: facts.args.get("use_replayssm") is True,
    ),
    "pipeline-parallel": (
        "the arguments ask for pipeline parallelism",
        lambda facts, _: (facts.number("pipeline_parallel_size") or 1) > 1,
    ),
    "pynccl-off": (
        "vLLM 0.33 runs without pynccl: it is missing from its back ends, or NCCL is older than 2.29.7",
        lambda facts, _: (
            _v33(facts) and (facts.pynccl_off is not None or facts.version_is("nccl", PYNCCL_NEEDS) is True)
        ),
    ),
    "no-k3-plugin": (
        "the log does not name k3ctl's plugin (k3_runtime), which orders the pipeline's stages without pynccl",
        lambda facts, _: not facts.k3_plugin,
    ),
    "nccl-old-enough": (
        "the NCCL that is loaded is 2.28.9 or older",
        lambda facts, _: facts.version_is("nccl", Version("2.28.10")),
    ),
    "cache-pinned": (
        "the arguments pin kv_cache_memory_bytes, which makes gpu_memory_utilization void",
        lambda facts, _: facts.args.get("kv_cache_memory_bytes") is not None,
    ),
    "remote-code-allowed": (
        "the arguments set trust_remote_code",
        lambda facts, _: facts.args.get("trust_remote_code") is True,
    ),
    "served-before": (
        "the server had been ready before this line",
        lambda facts, record: facts.served is not None and facts.served.order < record.order,
    ),
    "served-after": (
        "the server became ready after this line",
        lambda facts, record: facts.served is not None and facts.served.order > record.order,
    ),
    "starting": (
        "the log shows a start, and the server was not ready yet at this line",
        lambda facts, record: (
            facts.started is not None and (facts.served is None or facts.served.order > record.order)
        ),
    ),
    "orderly": (
        "the API server had begun to shut down before this line",
        lambda facts, record: facts.stopping is not None and facts.stopping.order < record.order,
    ),
    "tuning": (
        "kernels were being tuned in one of the logs",
        lambda facts, _: facts.tuning is not None,
    ),
    "standard-decode": (
        "the arguments are known and do not ask for the specialized decode",
        lambda facts, _: facts.args_known and not facts.specialized,
    ),
    "one-board-gpus": (
        "the GPUs belong to boards of eight: their NVLink ends at the board",
        lambda facts, _: bool(facts.gpus) and not facts.gpus & _RACK,
    ),
    "hopper": (
        "the GPU is a Hopper",
        lambda facts, _: bool(facts.gpus) and facts.gpus <= _HOPPER,
    ),
}
"""Name → what it means, and how it is read. None is unknown, and unknown changes nothing."""


def holds(names: tuple[str, ...], facts: Facts, record: Record) -> bool:
    """Whether every condition is known to hold at ``record``."""
    return all(CONDITIONS[name][1](facts, record) is True for name in names)
