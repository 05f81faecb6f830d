"""``k3ctl member``: one node of ``k3ctl serve --nodes``. Started through ssh; people have no use for it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl.commands.serve.narrator import Narrator
from k3ctl.errors import K3Error, UsageError
from k3ctl.output import CommandResult

if TYPE_CHECKING:
    import socket

    from k3ctl.engine.launch import RunningEngine
    from k3ctl.engine.rundir import Run
    from k3ctl.gpus.types import Node as Gpus
    from k3ctl.profiles.resolve import ResolvedConfig
    from k3ctl.rack.tether import Tether

STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def register(app: typer.Typer, command: Any) -> None:
    """Add the hidden ``member`` command."""
    command(app, "member", hidden=True)(member)


def member(
    gpus: Annotated[bool, typer.Option("--gpus", help="Only send what this node's GPUs do.")] = False,
) -> CommandResult:
    """Serve as one node of a group: orders as JSON lines on stdin, news on stdout. Started by `k3ctl serve --nodes`."""
    from k3ctl.commands.serve import session
    from k3ctl.rack import wire
    from k3ctl.rack.tether import Tether

    if sys.stdin.isatty():
        raise UsageError("`k3ctl member` is started by `k3ctl serve --nodes`, through ssh")
    if gpus:
        from k3ctl.feeds import rack_source

        rack_source.send()
        return CommandResult("k3ctl.member/1", {})
    for number in STOPS:
        signal.signal(number, session.terminated)
    tether = Tether()
    tether.start()
    try:
        _serve(tether)
    except session.Terminated:
        tether.say("ended", state="stopped", reason=tether.lost or "asked to stop")
    except K3Error as error:
        tether.say("refused", error=wire.error_data(error))
    tether.close()
    return CommandResult("k3ctl.member/1", {})


def _serve(tether: Tether) -> None:
    from k3ctl.commands.serve import session
    from k3ctl.engine import launch
    from k3ctl.engine.node import Node

    hello = tether.order("hello")
    resolved = _resolved(hello)
    here = _introduce(tether, resolved, hello)
    order = _places(tether)
    node = Node(
        rank=int(order["rank"]),
        master_addr=str(order["master_addr"]),
        master_port=int(order["master_port"]),
        address=order["address"] or None,
        secret=str(order["secret"]),
    )
    if order.get("api_key"):
        os.environ["VLLM_API_KEY"] = str(order["api_key"])
    engine = launch.launch(
        resolved,
        host=order["host"],
        port=order["port"],
        node=node,
        any_version=not hello["checks"],
        seen=session.seen(resolved, here),
    )
    try:
        _stay(tether, engine, resolved, order)
    except session.Terminated:
        with contextlib.suppress(K3Error):
            session.stopped(engine, Narrator(), interrupted=False)
        _ended(tether, engine.run, tether.lost)
    except K3Error as error:
        engine.stop()
        _ended(tether, engine.run, "", error)
    except BaseException:
        engine.stop()
        raise


def _resolved(hello: Mapping[str, Any]) -> ResolvedConfig:
    from k3ctl.profiles import loader
    from k3ctl.profiles.resolve import resolve

    resolved = resolve(loader.load(str(hello["profile"])), dict(hello["set"]), os.environ)
    return resolved if hello["model"] is None else resolved.with_model_path(str(hello["model"]))


def _introduce(tether: Tether, resolved: ResolvedConfig, hello: Mapping[str, Any]) -> Gpus | None:
    """Tell of this node; returns what was seen of its GPUs."""
    from k3ctl.commands.serve import session
    from k3ctl.machine import record
    from k3ctl.rack import about

    told = about.tell(resolved, any_version=not hello["checks"])
    if not hello["checks"]:
        tether.say("about", **told)
        return None
    seen, started = session.machines(resolved)
    tether.say("about", **told, machine=record.to_json([started]))
    return seen.node


def _places(tether: Tether) -> dict[str, Any]:
    """Answer what is asked about addresses and ports until the launch is ordered."""
    from k3ctl.engine import preflight
    from k3ctl.engine.node import HEARTBEAT_OFFSET
    from k3ctl.rack import about

    held: list[socket.socket] = []
    try:
        while True:
            order = tether.next()
            if order["k3"] == "launch":
                return order
            if order["k3"] == "place":
                port = preflight.free_port(order["host"], order["port"])
                master, held = about.ports(
                    order["address"], order["master_port"], order["first"], HEARTBEAT_OFFSET
                )
                tether.say("placed", master_port=master, port=port)
            elif order["k3"] == "reach":
                tether.say("reached", why=about.reach(order["address"], order["port"]))
            else:
                raise UsageError(f"an order of another k3ctl: `{order['k3']}`")
    finally:
        for one in held:
            one.close()


def _stay(tether: Tether, engine: RunningEngine, resolved: ResolvedConfig, order: Mapping[str, Any]) -> None:
    """From the start to the end of the engine, telling everything."""
    from k3ctl.commands.serve import session

    tell = Teller(tether)
    run = engine.run
    tether.say(
        "run", id=run.id, log=str(run.engine_log), url=run.url, served_model_name=run.served_model_name
    )
    warnings = session.warn(resolved, run, []) if run.node_rank == 0 else []
    for warning in warnings:
        tell.line(f"warning: {warning}")
    run = engine.wait_ready(lambda stage: tether.say("stage", text=str(stage)))
    tether.say("ready")
    if run.node_rank == 0 and order["verify"]:
        session.verify(run, tell, engine.api_key)
    if run.node_rank == 0 and order["canary"]:
        session.canary(run, tell, engine.api_key)
    tether.say("checked")
    session.stay(engine, tell, [], until=tether.detach_wanted.is_set)
    if tether.detach_wanted.is_set():
        engine.detach()
        tether.say("detached")
    else:
        _ended(tether, engine.run, "")


def _ended(tether: Tether, run: Run, lost: str, error: K3Error | None = None) -> None:
    from k3ctl.engine import logs
    from k3ctl.rack import wire
    from k3ctl.redact import redactor

    # it is over: what is still to be told shall not be interrupted
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    fields: dict[str, Any] = {"state": run.state, "reason": lost or run.reason, "exit_code": run.exit_code}
    if error is not None:
        fields["error"] = wire.error_data(error)
    with contextlib.suppress(OSError):
        text = logs.tail(run.engine_log, wire.LOG_BYTES).decode(errors="replace")
        fields["log"] = "\n".join(map(redactor(os.environ).shown, text.split("\n")))
    tether.say("ended", **fields)


class Teller(Narrator):
    """What ``serve`` tells on stderr goes to the lead instead."""

    def __init__(self, tether: Tether) -> None:
        super().__init__()
        self._tether = tether

    def line(self, text: str) -> None:
        """One line."""
        self._tether.say("note", text=text)
