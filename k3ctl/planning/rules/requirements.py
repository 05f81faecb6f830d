"""What the machine must offer: products, GPUs, NVLink domain, versions, memory."""

from __future__ import annotations

from k3ctl.facts.products import PRODUCTS
from k3ctl.planning import memory
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules.base import Effect, Hit, RuleSet

CHECKPOINT_MINIMUM_GB = 1680
"""GPU memory, as sold, that the MXFP4 checkpoint needs over all GPUs (vLLM recipe, corrected 2026-09-12)."""
ANY = ">=0"
"""Rules about the machine or the profile hold for every vLLM."""

_rules = RuleSet(
    effect=Effect.IMPOSSIBLE,
    source="the profile's `requires`",
    date="2026-09-23",
    vllm=">=0.27,<0.34",
    specialized=False,
)
rule = _rules.rule


@rule("requires.gpu", platform="any", vllm=ANY)
def gpu_product(d: Proposal) -> Hit | None:
    """The GPUs are of a product that the profile is for."""
    wanted, hardware = d.config.profile.requires.gpu, d.hardware
    if not wanted or hardware is None or hardware.accepted(wanted):
        return None
    have = hardware.product or ("an unknown GPU" if hardware.gpus else "no GPU")
    return Hit(f"needs {'/'.join(wanted)}, found {have}", "choose a profile for this hardware: `k3ctl plan`")


@rule("requires.gpus", vllm=ANY)
def gpu_count(d: Proposal) -> Hit | None:
    """There are as many GPUs as TP × PP × DP."""
    hardware, needed = d.hardware, d.parallel.gpus
    if hardware is None or hardware.gpus >= needed:
        return None
    names = f" on {', '.join(hardware.hosts)}" if hardware.hosts else ""
    return Hit(f"needs {needed} GPUs, found {hardware.gpus}{names}", "add hosts, or choose a smaller profile")


@rule("requires.nvlink-domain", vllm=ANY)
def nvlink_domain(d: Proposal) -> Hit | None:
    """The GPUs of a profile for one NVLink domain are in one NVLink domain."""
    requires, hardware = d.config.profile.requires, d.hardware
    if not requires.nvlink_domain or hardware is None or hardware.largest_tp >= d.parallel.tp:
        return None
    return Hit(
        f"needs {d.parallel.tp} GPUs in one NVLink domain; the largest offers {hardware.largest_tp} "
        f"({hardware.domain_list()})",
        "put the trays into one partition of the rack, or use a profile for fewer GPUs",
    )


@rule("requires.driver", vllm=ANY)
def driver(d: Proposal) -> Hit | None:
    """The NVIDIA driver is recent enough."""
    from packaging.specifiers import SpecifierSet

    wanted, found = d.config.profile.requires.driver, d.hardware.driver if d.hardware else ""
    if not wanted or not found or SpecifierSet(wanted).contains(found, prereleases=True):
        return None
    return Hit(f"driver {found}, needs {wanted}", "install a newer driver branch")


@rule("requires.vllm", platform="any", vllm=ANY, source="the profile's `requires.vllm`")
def vllm_version(d: Proposal) -> Hit | None:
    """The vLLM that will run it is one the profile was written for."""
    from packaging.specifiers import SpecifierSet

    wanted = d.config.profile.requires.vllm
    if SpecifierSet(wanted).contains(d.vllm, prereleases=True):
        return None
    return Hit(f"vLLM {d.vllm}, needs {wanted}", "install a vLLM in that range")


@rule("specialized.vllm", vllm=">=0,<0.33", specialized=True, source="vllm wheels: absent before 0.33.0")
def specialized_version(d: Proposal) -> Hit | None:
    """vLLM is new enough to have the specialized path; older ones ignore the key."""
    return Hit(f"vLLM {d.vllm} has no specialized decode", "use vLLM 0.33.0")


@rule(
    "memory.checkpoint",
    vllm=ANY,
    source="https://github.com/vllm-project/recipes/pull/964",
)
def checkpoint_memory(d: Proposal) -> Hit | None:
    """The GPUs together hold the checkpoint."""
    gb = d.hardware.nominal_gb if d.hardware else 0
    if not gb:
        token = next(iter(d.config.profile.requires.gpu), "")
        gb = PRODUCTS[token].nominal_gb if token in PRODUCTS else 0
    gpus = d.parallel.gpus
    if not gb or not d.whole_k3 or gpus * gb >= CHECKPOINT_MINIMUM_GB:
        return None
    # two is the smallest step that keeps TP a divisor of the heads
    needed = next(n for n in (8, 16, 32) if n * gb >= CHECKPOINT_MINIMUM_GB)
    return Hit(
        f"{gpus} x {gb} = {gpus * gb} GB < {CHECKPOINT_MINIMUM_GB} GB minimum for the MXFP4 checkpoint",
        f"use {needed} GPUs",
        {"tensor_parallel_size": needed},
    )


@rule("memory.fit", vllm=">=0.33.0,<0.34", source="k3ctl's memory plan (an estimate)")
def memory_fit(d: Proposal) -> Hit | None:
    """Weights, buffers and at least one sequence fit into each GPU."""
    if not d.whole_k3 or not d.gpu_bytes or d.parallel.tp not in (1, 2, 4, 8, 16, 32):
        return None
    plan, gib = memory.plan(d.memory_settings, d.workload.sequence_tokens), memory.GIB
    if plan.cache_bytes <= 0:
        weights = plan.weights.total / gib
        buffers = sum(item.size_bytes for item in plan.items) / gib - weights
        return Hit(
            f"per GPU: weights {weights:.1f} GiB and {buffers:.1f} GiB of buffers do not fit into "
            f"{plan.budget_bytes / gib:.1f} GiB ({d.gpu_gib:.1f} GiB × utilization)",
            _roomier(d),
        )
    if plan.fits:
        return None
    return Hit(
        f"{plan.cache_bytes / gib:.1f} GiB of cache hold no sequence of {plan.sequence_tokens:,} tokens",
        f"set max_model_len to at most {plan.longest_single_tokens:,}",
        {"max_model_len": plan.longest_single_tokens},
    )


def _roomier(d: Proposal) -> str:
    if d.parallel.tp == 16 and not d.parallel.expert_parallel:
        return "use expert parallelism (TP16 pads the experts by a third), or more GPUs"
    return "use more GPUs: TP16, or TP8 × PP2 over two nodes"


RULES = tuple(_rules.rules)
