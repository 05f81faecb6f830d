"""IMEX: what GPU memory sharing between operating systems of one NVLink domain needs."""

from __future__ import annotations

from collections.abc import Iterator

from k3ctl.checks.finding import Area, Hit, Severity, Source, rule
from k3ctl.checks.view import NodeView
from k3ctl.facts.products import Kind
from k3ctl.host import imex_domain
from k3ctl.host.types import Imex, ImexNode

CHANNEL = Source("https://github.com/microsoft/mscclpp/issues/467", "2025-02-24")
GUIDE = Source("https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html", "2026-09")
ACROSS = "every group over more than one tray"
RACK_OR_UNKNOWN = frozenset({Kind.NVL72, Kind.UNKNOWN})


def _may_need_imex(view: NodeView) -> bool:
    """A rack tray, or a capture that does not tell what GPUs there are."""
    return view.product.kind is Kind.NVL72 or not view.node.gpus


@rule(
    "imex.no-channel",
    Severity.WARN,
    Area.MULTI_NODE,
    "No IMEX channel device",
    blocks=ACROSS,
    remedy="load nvidia with NVreg_CreateImexChannel0=1; pass /dev/nvidia-caps-imex-channels to containers",
    sources=(CHANNEL, GUIDE),
    kinds=RACK_OR_UNKNOWN,
)
def no_channel(view: NodeView) -> Iterator[Hit]:
    imex = view.node.imex
    if _may_need_imex(view) and isinstance(imex, Imex) and imex.channels == ():
        yield Hit("/dev/nvidia-caps-imex-channels holds no channel")


def _query(view: NodeView) -> str | None:
    return view.node.imex.ctl_query if isinstance(view.node.imex, Imex) else None


@rule(
    "imex.not-ready",
    Severity.FAIL,
    Area.MULTI_NODE,
    "IMEX says that it is not ready",
    blocks=ACROSS,
    remedy="read /var/log/nvidia-imex.log; compare /etc/nvidia-imex/nodes_config.cfg over the trays, and restart "
    "nvidia-imex on all of them",
    sources=(
        GUIDE,
        Source("https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/626", "2025-09-26"),
    ),
    kinds=RACK_OR_UNKNOWN,
)
def not_ready(view: NodeView) -> Iterator[Hit]:
    """Whatever systemd says of the service: the process may be there and wait for its peers."""
    answer = _query(view)
    if answer is not None and answer not in imex_domain.READY_ANSWERS:
        yield Hit(f"`nvidia-imex-ctl -q` answers {answer} (IMEX not ready)")


@rule(
    "imex.service-inactive",
    Severity.WARN,
    Area.MULTI_NODE,
    "The IMEX service is not running",
    blocks=ACROSS,
    remedy="list the trays in /etc/nvidia-imex/nodes_config.cfg; `sudo systemctl enable --now nvidia-imex`",
    sources=(GUIDE,),
    kinds=RACK_OR_UNKNOWN,
)
def service_inactive(view: NodeView) -> Iterator[Hit]:
    service = view.node.services.get("nvidia-imex")
    inside = view.node.virt == "container"
    if _query(view) in imex_domain.READY_ANSWERS:
        return  # it answers: systemd may start it under another name, or it runs in a container
    if (
        _may_need_imex(view)
        and service
        and service.active != "active"
        and not (inside and service.load == "not-found")
    ):
        yield Hit(f"nvidia-imex is {service.active} ({service.load})")


def _nodes(view: NodeView) -> tuple[ImexNode, ...]:
    return view.host.imex_domain.nodes if view.host and view.host.imex_domain else ()


def _label(node: ImexNode) -> str:
    return f"IMEX node {node.number} ({node.name or node.host})"


@rule(
    "imex.node-down",
    Severity.FAIL,
    Area.MULTI_NODE,
    "A node of the IMEX domain is not ready",
    blocks="every group that includes this tray",
    remedy="start nvidia-imex on that tray and compare its nodes_config.cfg with the others",
    sources=(GUIDE,),
)
def node_down(view: NodeView) -> Iterator[Hit]:
    for node in _nodes(view):
        if node.status != imex_domain.READY:
            yield Hit(f"status {node.status or 'unknown'}", _label(node))


def _pairs(view: NodeView, state: str) -> list[str]:
    return [
        f"{node.number}→{peer}" for node in _nodes(view) for peer, seen in node.links.items() if seen == state
    ]


@rule(
    "imex.version-mismatch",
    Severity.FAIL,
    Area.MULTI_NODE,
    "IMEX versions differ between the trays",
    blocks=ACROSS,
    remedy="install the same driver and IMEX version on all trays of the domain",
    sources=(GUIDE,),
)
def version_mismatch(view: NodeView) -> Iterator[Hit]:
    versions = {node.version for node in _nodes(view) if node.version}
    pairs = _pairs(view, imex_domain.VERSION_MISMATCH)
    if pairs or len(versions) > 1:
        seen = ", ".join(f"{_label(node)}: {node.version}" for node in _nodes(view) if node.version)
        yield Hit(f"{seen}; connections {', '.join(pairs) or 'without mark'}")


@rule(
    "imex.nodemap-mismatch",
    Severity.FAIL,
    Area.MULTI_NODE,
    "The trays have different IMEX node maps",
    blocks=ACROSS,
    remedy="write the same nodes_config.cfg, in the same order, on all trays and restart nvidia-imex",
    sources=(GUIDE,),
)
def nodemap_mismatch(view: NodeView) -> Iterator[Hit]:
    pairs = _pairs(view, imex_domain.NODEMAP_MISMATCH)
    if pairs:
        yield Hit(f"connections {', '.join(pairs)}")


@rule(
    "imex.domain-state",
    Severity.FAIL,
    Area.MULTI_NODE,
    "The IMEX domain is not up",
    blocks=ACROSS,
    remedy="run `nvidia-imex-ctl -N` on each tray and read /var/log/nvidia-imex.log",
    sources=(GUIDE,),
)
def domain_state(view: NodeView) -> Iterator[Hit]:
    """Only when no node or connection explains it: the cause is reported, not its consequence."""
    domain = view.host.imex_domain if view.host else None
    if domain is None or domain.status == imex_domain.UP:
        return
    explained = any(node.status != imex_domain.READY for node in domain.nodes) or any(
        _pairs(view, state) for state in (imex_domain.VERSION_MISMATCH, imex_domain.NODEMAP_MISMATCH)
    )
    if not explained:
        broken = [
            f"{node.number}→{peer} {seen}"
            for node in domain.nodes
            for peer, seen in node.links.items()
            if seen != imex_domain.CONNECTED
        ]
        yield Hit(f"domain state {domain.status or 'unknown'}; {', '.join(broken) or 'all connections up'}")
