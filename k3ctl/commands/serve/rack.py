"""``k3ctl serve --nodes``: several hosts as one, from one terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl.errors import ExitCode, K3Error, UsageError
from k3ctl.output import CommandResult, Lines

if TYPE_CHECKING:
    from k3ctl.commands.serve.board import Board
    from k3ctl.profiles.resolve import ResolvedConfig
    from k3ctl.rack.lead import Lead, Node
    from k3ctl.rack.record import Group

SCHEMA = "k3ctl.serve-group/1"


@dataclass(frozen=True)
class Request:
    """What was typed about the nodes and the configuration."""

    resolved: ResolvedConfig
    profile: str
    overrides: Mapping[str, str]
    model: str | None
    nodes: str
    remote_k3ctl: str
    node_timeout_s: float


@dataclass(frozen=True)
class Launch:
    """What was typed about the start; None: chosen on the nodes."""

    host: str | None
    port: int | None
    master_addr: str | None
    master_port: int | None
    verify: bool
    canary: bool


def serve(request: Request, launch: Launch, *, checks: bool, detach: bool) -> CommandResult:
    """Start on every node, stay until one ends or the operator stops it; nothing is left on any of them."""
    from k3ctl.commands.serve.board import Board
    from k3ctl.host import ssh
    from k3ctl.rack import record
    from k3ctl.rack.lead import Lead, Stopped, Wanted

    hosts = tuple(ssh.names(request.nodes))
    _sizes(request.resolved, hosts)
    hello = {
        "profile": _profile_on_nodes(request.profile),
        "set": _overrides(request.overrides),
        "model": request.model,
        "checks": checks,
    }
    board = Board(hosts)
    group: list[Group] = []
    wanted = Wanted(hosts, hello, request.remote_k3ctl, request.node_timeout_s)
    lead = Lead(wanted, lambda node, kind, news: _hear(board, group, lambda: lead.stops, node, kind, news))
    try:
        with _signals(lead) as asked:
            try:
                warnings = _prepare(lead, request, launch, wanted, group, checks=checks)
                for warning in warnings:
                    board.line(f"warning: {warning}")
                _start(lead, group, launch, board)
                if detach:
                    lead.detach()
                    group[0] = record.update(group[0].dir, detached=True)
                    return _result(group[0], warnings, _after_detach(group[0]))
                board.line("Ctrl-C stops all nodes")
                lead.until("stopped")
                return _ended(lead, group[0], warnings, ExitCode.OK)
            except Stopped:
                board.line("stopping; again to stop at once")
                lead.stop()
                board.end()
                code = ExitCode.INTERRUPTED if signal.SIGINT in asked else ExitCode.OK
                if not group:
                    raise K3Error("stopped before anything was started") from None
                return _ended(lead, group[0], [], code)
    except K3Error as error:
        lead.stop()
        if group:
            record.ended(group[0], "failed", error.message)
            raise _with_logs(error, group[0]) from None
        raise
    finally:
        board.end()
        lead.close()


def _sizes(resolved: ResolvedConfig, hosts: tuple[str, ...]) -> None:
    count = int(resolved.get("nnodes") or 1)
    if count != len(hosts):
        raise UsageError(
            f"--nodes names {len(hosts)}, and `{resolved.profile.name}` spans {count}",
            hint=f"name {count}, or say `--set nnodes={len(hosts)}` and sizes (tensor_parallel_size, …) that fit",
        )
    if count == 1:
        raise UsageError("--nodes needs two or more", hint="on one host run `k3ctl serve` there")


def _profile_on_nodes(name: str) -> str:
    """A profile's name, or its file by the same absolute path on every node."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.suffix in (".yaml", ".yml") or os.sep in name else name


def _overrides(typed: Mapping[str, str]) -> dict[str, str]:
    """What this terminal's ``K3CTL_SET`` and ``--set`` say, for the nodes."""
    from k3ctl.profiles import overrides

    return {**overrides.from_environment(os.environ), **typed}


@contextmanager
def _signals(lead: Lead) -> Iterator[list[int]]:
    """Signals become wishes to stop; a terminal that closes is one."""
    asked: list[int] = []

    def heard(number: int, _frame: Any) -> None:
        asked.append(number)
        lead.stops += 1

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare(
    lead: Lead, request: Request, launch: Launch, wanted: Any, group: list[Group], *, checks: bool
) -> list[str]:
    """Everything that is checked and chosen before an engine starts; makes the group's record."""
    from k3ctl.checks import merge
    from k3ctl.commands.serve import session
    from k3ctl.engine.node import MASTER_PORT
    from k3ctl.rack import agree, record
    from k3ctl.rack.lead import PLACE_S, new_group

    told = lead.connect()
    agree.check(told, any_version=not checks)
    warnings: list[str] = []
    if checks:
        parts = [merge.parse(about["machine"], source=host) for host, about in told.items()]
        named = [
            merge.Gathered(tuple(machine.named(host) for machine in part.machines), part.findings, part.notes)
            for host, part in zip(told, parts, strict=True)
        ]
        warnings = session.judge(request.resolved, merge.combine(named), request.overrides, request.nodes)
    address = agree.master_address(told, launch.master_addr)
    host, port = _listens_at(request.resolved, launch)
    first, *others = lead.nodes
    placed = lead.ask(
        "place", "placed", PLACE_S, of=[first], address=address, master_port=launch.master_port,
        first=MASTER_PORT, host=host, port=port,
    )[first.host]  # fmt: skip
    reached = lead.ask("reach", "reached", PLACE_S, of=others, address=address, port=placed["master_port"])
    _reached(reached, first.host, f"{address}:{placed['master_port']}")
    addresses = {name: _own_address(about, address) for name, about in told.items()}
    made, secret = new_group(
        wanted, request.resolved.profile.name, addresses, (address, int(placed["master_port"]))
    )
    group.append(made)
    order = {"host": host, "port": int(placed["port"]), "verify": launch.verify, "canary": launch.canary}
    group[0] = lead.launch(made, secret, order, os.environ.get("VLLM_API_KEY"))
    if record.read(made.dir).over:
        raise K3Error("the group was stopped while it started")
    return warnings


def _own_address(about: Mapping[str, Any], master: str) -> str:
    """A node's address for the others; none where it is loopback and the master's is not."""
    from k3ctl.rack import agree

    own = str(about["address"])
    return "" if agree.is_loopback(own) and not agree.is_loopback(master) else own


def _listens_at(resolved: ResolvedConfig, launch: Launch) -> tuple[str, int]:
    host = launch.host if launch.host is not None else str(resolved.get("host", "127.0.0.1"))
    return host, launch.port if launch.port is not None else int(resolved.get("port", 8000))


def _reached(answers: Mapping[str, Mapping[str, Any]], first: str, where: str) -> None:
    failed = {host: str(answer["why"]) for host, answer in answers.items() if answer["why"]}
    if failed:
        listed = ", ".join(f"{host} ({why})" for host, why in failed.items())
        raise UsageError(
            f"{first} at {where} cannot be reached from {listed}",
            hint="look at routes and firewalls, or give an address that all nodes know with `--master-addr`",
        )


def _start(lead: Lead, group: list[Group], launch: Launch, board: Board) -> None:
    import time

    from k3ctl.rack import record

    board.line(f"group `{group[0].id}`, record {group[0].dir / 'group.json'}")
    lead.until("ready")
    group[0] = record.update(group[0].dir, state="ready", ready_at=time.time())
    board.end()
    where = group[0]
    board.line(f"serving `{where.served_model_name}` on {len(where.members)} nodes at {where.url}/v1")
    if "127.0.0.1" in where.url or "[::1]" in where.url:
        board.line(f"that address is {where.hosts[0]}'s own: listen elsewhere with --host, or use `ssh -L`")
    if launch.verify or launch.canary:
        lead.ask("beat", "checked", CHECKED_S, of=lead.nodes[:1])


CHECKED_S = 1800.0
"""Longest wait for the proof of the path and the canary: a server that is slow is no failure."""


def _hear(
    board: Board,
    group: list[Group],
    stops: Callable[[], int],
    node: Node,
    kind: str,
    news: Mapping[str, Any],
) -> None:
    from k3ctl.rack.lead import keep_log

    # nobody asked for the end, so all logs are wanted: a node that stopped for the others may know why
    if kind == "ended" and group and not stops() and isinstance(news.get("log"), str):
        keep_log(group[0], node.host, news["log"])
    board.hear(node, kind, news)


def _with_logs(error: K3Error, group: Group) -> K3Error:
    """The error with where the nodes' logs are, and how to read them as one."""
    kept = sorted((group.dir / "logs").glob("*.log"))
    said = [f"logs of {len(kept)} nodes: {group.dir / 'logs'}"] if kept else []
    said += [f"all nodes as one: `k3ctl triage --run {group.id}`"]
    return type(error)(error.message, hint=error.hint, reasons=[*error.reasons, *said])


def _ended(lead: Lead, group: Group, warnings: list[str], code: ExitCode) -> CommandResult:
    """After an orderly stop. A node that did not say that it ended is named."""
    from k3ctl.rack import record

    left = [node.host for node in lead.nodes if node.state != "stopped"]
    reason = next((node.reason for node in lead.nodes if node.reason), "asked to stop")
    group = record.ended(group, "failed" if left else "stopped", reason)
    lines = [f"{node.host}: {node.state} ({node.reason})" for node in lead.nodes]
    return _result(group, warnings, lines, ExitCode.ENGINE if left else code)


def _after_detach(group: Group) -> list[str]:
    return [f"{group.url}/v1", f"group {group.id} · k3ctl ps · k3ctl logs {group.id} · k3ctl stop {group.id}"]


def _result(
    group: Group, warnings: list[str], lines: list[str], code: ExitCode = ExitCode.OK
) -> CommandResult:
    from k3ctl.rack.remote import as_data

    return CommandResult(SCHEMA, as_data(group) | {"notes": warnings}, [Lines(lines)], code)
