"""Environment variables that decide whether a server starts, waits long enough, or can be observed."""

from __future__ import annotations

from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules.base import Effect, Hit, RuleSet

MNNVL = ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
PLUGINS = {"k3_runtime": "the witness", "k3_witness": "its routes"}
READY_TIMEOUT_S = 1800
"""A 1.56 TB load takes about 7 minutes from local disks and far longer from network storage."""

_rules = RuleSet(
    effect=Effect.FAILS, source="vllm/envs.py", date="2026-09-23", vllm=">=0.27", specialized=False
)
rule = _rules.rule


@rule("env.target-device", source="vllm/platforms/__init__.py: the variable forces the CPU platform")
def target_device(d: Proposal) -> Hit | None:
    """VLLM_TARGET_DEVICE is not set on a GPU host."""
    value = d.env("VLLM_TARGET_DEVICE")
    if value in (None, "cuda"):
        return None
    return Hit(f"VLLM_TARGET_DEVICE={value}", "remove it", {"env.VLLM_TARGET_DEVICE": "cuda"})


@rule("env.host-ip", source="vllm multi-node start: workers dial this address")
def host_ip(d: Proposal) -> Hit | None:
    """The host's address is not loopback when there are several nodes."""
    value = d.env("VLLM_HOST_IP")
    if d.config.profile.requires.nodes == 1 or not value or not value.startswith("127."):
        return None
    return Hit(
        f"VLLM_HOST_IP={value} on {d.config.profile.requires.nodes} nodes",
        "remove it, or use the host's address",
    )


@rule("env.mnnvl", source="https://recipes.vllm.ai/moonshotai/Kimi-K3: note for NVL72 trays")
def mnnvl(d: Proposal) -> Hit | None:
    """NCCL may use multi-node NVLink, cuMem and NVLS over the trays of one rack."""
    if d.config.profile.requires.nodes == 1 or not d.config.profile.requires.nvlink_domain:
        return None
    off = [name for name in MNNVL if d.env(name) == "0"]
    if not off:
        return None
    return Hit(
        f"{', '.join(off)}=0 over several trays", "set all three to 1", {f"env.{name}": "1" for name in MNNVL}
    )


@rule(
    "env.ready-timeout",
    effect=Effect.COST,
    source="vllm/envs.py: VLLM_ENGINE_READY_TIMEOUT_S defaults to 600",
)
def ready_timeout(d: Proposal) -> Hit | None:
    """The start may take as long as loading 1.56 TB of weights does."""
    value = float(d.env("VLLM_ENGINE_READY_TIMEOUT_S") or 600)
    if value >= READY_TIMEOUT_S:
        return None
    return Hit(
        f"VLLM_ENGINE_READY_TIMEOUT_S is {value:.0f}",
        "set 3600: the load alone takes about 7 minutes from local disks",
        {"env.VLLM_ENGINE_READY_TIMEOUT_S": "3600"},
    )


@rule(
    "env.execute-timeout",
    effect=Effect.COST,
    source="vllm/envs.py: defaults to 300; first autotuning is longer",
)
def execute_timeout(d: Proposal) -> Hit | None:
    """A step may take as long as the first autotuning does."""
    value = float(d.env("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS") or 300)
    if value >= 900:
        return None
    return Hit(
        f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS is {value:.0f}",
        "set 1800: the first autotuning was reported to take about 15 minutes",
        {"env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800"},
    )


@rule(
    "env.plugins",
    effect=Effect.COST,
    platform="any",
    source="vllm/plugins/__init__.py: VLLM_PLUGINS is an allow-list for every plugin group",
)
def plugins(d: Proposal) -> Hit | None:
    """VLLM_PLUGINS names the runtime and the witness, without which the path cannot be proved."""
    listed = [name.strip() for name in (d.env("VLLM_PLUGINS") or "").split(",")]
    missing = [name for name in PLUGINS if name not in listed]
    if not missing:
        return None
    what = " and ".join(PLUGINS[name] for name in missing)
    return Hit(
        f"VLLM_PLUGINS leaves out {', '.join(missing)}: {what} will not be loaded",
        "set VLLM_PLUGINS=k3_runtime,k3_witness",
        {"env.VLLM_PLUGINS": ",".join(PLUGINS)},
    )


@rule(
    "pipeline.pynccl",
    vllm=">=0.33.0,<0.34",
    source="vllm/v1/worker/gpu/pp_utils.py; seen on 2 H200s, TP1 x PP2, NCCL 2.28.9",
)
def pynccl(d: Proposal) -> Hit | None:
    """Pipeline stages run with pynccl, or with the plugin that orders their streams without it."""
    if d.parallel.pp == 1 or d.has_runtime or not d.env_flag("VLLM_DISABLE_PYNCCL"):
        return None
    return Hit(
        "VLLM_DISABLE_PYNCCL=1 with pipeline parallelism: wrong tokens, then illegal memory accesses",
        "remove it",
        {"env.VLLM_DISABLE_PYNCCL": "0"},
    )


@rule("env.dev-mode", effect=Effect.COST, source="vllm/entrypoints: development routes control the engine")
def dev_mode(d: Proposal) -> Hit | None:
    """Development routes are not open on an address that others reach."""
    if not d.env_flag("VLLM_SERVER_DEV_MODE") or str(d.arg("host")).startswith("127."):
        return None
    return Hit("VLLM_SERVER_DEV_MODE=1 on an open address", "remove it", {"env.VLLM_SERVER_DEV_MODE": "0"})


RULES = tuple(_rules.rules)
