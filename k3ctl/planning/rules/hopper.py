"""What the runtime's own decode path on Hopper needs (``decode.backend: hopper``).

The engine refuses with all reasons at once; these rules say them before the load. They mirror
``runtime/engine/hopper/setup.py``, and a test compares the two on vLLM's own configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from k3ctl.facts.k3 import SPECIALIZED_DRAFTS, SPECIALIZED_ROWS
from k3ctl.planning import budget
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules import checked
from k3ctl.planning.rules.base import Effect, Hit, RuleSet
from k3ctl.profiles import settings

HOPPER = (9, 0)
SWITCH = "additional_config.k3_decode"
FULL_MODES = ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")
_rules = RuleSet(
    effect=Effect.REFUSED,
    source="runtime/engine/hopper/setup.py:unsupported",
    date="2026-11-30",
    vllm=">=0",
    specialized=False,
)
Check = Callable[[Proposal], Hit | None]


def rule(id: str, **different: object) -> Callable[[Check], Check]:
    """A rule of this backend: it is asked only where the backend is asked for."""

    def add(check: Check) -> Check:
        @wraps(check)
        def asked(d: Proposal) -> Hit | None:
            return check(d) if settings.own_decode(d.config) == settings.HOPPER else None

        return _rules.rule(id, **different)(asked)

    return add


@rule("hopper.gpu")
def gpu(d: Proposal) -> Hit | None:
    """The GPU is a Hopper one (H100, H200, GH200: compute capability 9.0)."""
    if d.capability is None or d.capability == HOPPER:
        return None
    found = f"compute capability {d.capability[0]}.{d.capability[1]}"
    return Hit(found, "use `decode.backend: latency_specialized` on SM100, or `auto`", {SWITCH: "stock"})


@rule("hopper.model")
def model(d: Proposal) -> Hit | None:
    """The model is Kimi K3."""
    if d.k3_moe:
        return None
    return Hit(f"the model `{d.config.model}` is not known to be Kimi K3", "use `auto`", {SWITCH: "stock"})


@rule("hopper.vllm")
def vllm_version(d: Proposal) -> Hit | None:
    """The engine is the release that the runtime was written for."""
    return None if d.vllm == "0.33.0" else Hit(f"vLLM {d.vllm}", "install vLLM 0.33.0, or use `auto`")


@rule("hopper.both")
def both(d: Proposal) -> Hit | None:
    """vLLM's own specialized decode is not asked for beside it."""
    if d.backend == "auto":
        return None
    key = "additional_config.decode_backend"
    return Hit(f"decode_backend is `{d.backend}` too", "leave it out: it is for Blackwell", {key: "auto"})


@rule("hopper.dp")
def data_parallel(d: Proposal) -> Hit | None:
    """No data parallelism."""
    if d.parallel.dp == 1:
        return None
    return Hit(f"data_parallel_size is {d.parallel.dp}", "leave it out", {"data_parallel_size": 1})


@rule("hopper.dcp")
def decode_context_parallel(d: Proposal) -> Hit | None:
    """No decode context parallelism."""
    if d.parallel.dcp == 1:
        return None
    key = "decode_context_parallel_size"
    return Hit(f"{key} is {d.parallel.dcp}", "leave it out", {key: 1})


@rule("hopper.pcp")
def prefill_context_parallel(d: Proposal) -> Hit | None:
    """No prefill context parallelism."""
    size = int(d.arg("prefill_context_parallel_size", 1))
    key = "prefill_context_parallel_size"
    return None if size == 1 else Hit(f"{key} is {size}", "leave it out", {key: 1})


@rule("hopper.ep")
def expert_parallel(d: Proposal) -> Hit | None:
    """No expert parallelism."""
    return checked.expert_parallel(d)


@rule("hopper.dbo")
def ubatching(d: Proposal) -> Hit | None:
    """No dual batch overlap or microbatches."""
    return checked.ubatching(d)


@rule("hopper.sleep")
def sleep_mode(d: Proposal) -> Hit | None:
    """No sleep mode."""
    return checked.sleep_mode(d)


@rule("hopper.lora")
def lora(d: Proposal) -> Hit | None:
    """No LoRA."""
    return checked.lora(d)


@rule("hopper.v2-runner")
def v2_runner(d: Proposal) -> Hit | None:
    """Model Runner V2 is used."""
    return checked.v2_runner(d)


@rule("hopper.torch-compile")
def torch_compile(d: Proposal) -> Hit | None:
    """Not the stock torch.compile mode."""
    return checked.torch_compile(d)


@rule("hopper.full-graphs")
def full_graphs(d: Proposal) -> Hit | None:
    """Decode steps are captured as FULL CUDA graphs of their own."""
    asked = str(d.arg("compilation_config.cudagraph_mode", "")).upper()
    if asked == "FULL":
        return Hit(
            "cudagraph_mode FULL has full graphs for prefills too",
            "use FULL_AND_PIECEWISE, the default",
            {"compilation_config.cudagraph_mode": FULL_MODES[0]},
        )
    return checked.full_graphs(d)


@rule("hopper.kda-dtypes")
def kda_dtypes(d: Proposal) -> Hit | None:
    """The KDA cache has a BF16 convolution window and an FP32 recurrent state."""
    return checked.kda_dtypes(d)


@rule("hopper.replayssm")
def replayssm(d: Proposal) -> Hit | None:
    """No ReplaySSM."""
    return checked.replayssm(d)


@rule("hopper.adaptive-verification")
def adaptive_verification(d: Proposal) -> Hit | None:
    """No adaptive verification."""
    return checked.adaptive_verification(d)


@rule("hopper.drafts")
def drafts(d: Proposal) -> Hit | None:
    """At most 7 speculative tokens."""
    if d.draft_tokens <= SPECIALIZED_DRAFTS:
        return None
    key = "speculative_config.num_speculative_tokens"
    return Hit(
        f"num_speculative_tokens is {d.draft_tokens}", f"use {SPECIALIZED_DRAFTS}", {key: SPECIALIZED_DRAFTS}
    )


@rule("hopper.rows", effect=Effect.STANDARD, source="runtime/model/decode.py:plan")
def rows(d: Proposal) -> Hit | None:
    """A decode step holds at most 64 rows: concurrent requests × (K + 1)."""
    concurrency = min(d.workload.concurrency or d.max_num_seqs, d.max_num_seqs)
    count = budget.rows(concurrency, d.draft_tokens)
    if count <= SPECIALIZED_ROWS:
        return None
    fitting = budget.specialized_requests(d.draft_tokens)
    return Hit(
        f"{concurrency} requests × q {d.query} = {count} rows > {SPECIALIZED_ROWS}",
        f"at most {fitting} requests run it; larger steps run vLLM's own kernels",
        {"max_num_seqs": fitting},
    )


@rule(
    "hopper.plugin", effect=Effect.STANDARD, source="vllm/plugins/__init__.py: VLLM_PLUGINS is an allow-list"
)
def plugin(d: Proposal) -> Hit | None:
    """The runtime's plugin is loaded, which alone reads the switch."""
    listed = d.env("VLLM_PLUGINS")
    if listed is None or "k3_runtime" in [name.strip() for name in listed.split(",")]:
        return None
    return Hit(
        "VLLM_PLUGINS leaves out k3_runtime: nothing reads `k3_decode`",
        "set VLLM_PLUGINS=k3_runtime,k3_witness",
        {"env.VLLM_PLUGINS": "k3_runtime,k3_witness"},
    )


RULES = tuple(_rules.rules)
