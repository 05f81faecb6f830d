"""``k3ctl serve``: start the engine of a profile, stay with it, stop it cleanly."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3ctl import completion
from k3ctl.errors import UsageError
from k3ctl.output import CommandResult

if TYPE_CHECKING:
    from k3ctl.engine.node import Node

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        "-p",
        metavar="NAME",
        help="Profile name, or a .yaml file; default: what `k3ctl plan` chooses for this machine.",
        autocompletion=completion.profiles,
    ),
]
HostOption = Annotated[
    str | None, typer.Option(help="Address to listen on; the default is loopback.", metavar="ADDRESS")
]
PortOption = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", metavar="N")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a vLLM argument by its own name; repeatable."),
]
ModelOption = Annotated[str | None, typer.Option(help="Serve the weights in this directory.", metavar="DIR")]
DetachOption = Annotated[
    bool, typer.Option("--detach", "-d", help="Leave the engine running once it is ready.")
]


RankOption = Annotated[
    int | None,
    typer.Option("--node-rank", metavar="N", help="This node's number in a launch over several nodes."),
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master-addr", metavar="ADDRESS", help="Address of node 0, the same on every node."),
]
MasterPortOption = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        metavar="N",
        min=1,
        max=65435,
        help="vLLM's rendezvous port, by default 29501; supervisors talk on it plus 100.",
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes", metavar="A,B,...", help="Start on these hosts through ssh, as one; node 0 is the first."
    ),
]
NodeLimitOption = Annotated[
    float,
    typer.Option("--node-timeout", metavar="S", min=1, help="Time limit for each host of --nodes to answer."),
]
RemoteOption = Annotated[
    str, typer.Option("--remote-k3ctl", metavar="PATH", help="Path of k3ctl on the hosts of --nodes.")
]
VerifyOption = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Prove the decode path once the server is ready.")
]
CanaryOption = Annotated[
    bool, typer.Option("--canary", help="Send `k3ctl canary`'s ten prompts once the server is ready.")
]
ChecksOption = Annotated[
    bool,
    typer.Option(
        "--skip-checks", help="Start although `k3ctl doctor` or `k3ctl plan` says that it cannot work."
    ),
]


def register(app: typer.Typer, command: Any) -> None:
    """Add the ``serve`` command."""
    command(
        app,
        "serve",
        epilog="Examples: k3ctl serve · k3ctl serve --profile cpu-tiny · "
        "k3ctl serve -p gb300-tp16 --port 8000 --detach · "
        "k3ctl serve -p cpu-tiny --port 0 --set max_num_seqs=4 · "
        "k3ctl serve -p b300-tp8 --model /data/Kimi-K3 · "
        "k3ctl serve -p gb300-tp16 --nodes tray0,tray1,tray2,tray3 · "
        "k3ctl serve -p gb300-tp16 --node-rank 1 --master-addr tray0",
    )(serve)


def serve(
    profile: ProfileOption = None,
    host: HostOption = None,
    port: PortOption = None,
    overrides: SetOption = None,
    model: ModelOption = None,
    detach: DetachOption = False,
    nodes: NodesOption = None,
    node_rank: RankOption = None,
    master_addr: MasterOption = None,
    master_port: MasterPortOption = None,
    node_timeout: NodeLimitOption = 60.0,
    remote_k3ctl: RemoteOption = "k3ctl",
    verify: VerifyOption = True,
    canary: CanaryOption = False,
    skip_checks: ChecksOption = False,
) -> CommandResult:
    """Start the engine of a profile and stay in the foreground until it is stopped.

    Without --profile it takes the one that `k3ctl plan` chooses for this machine, and says so. Ctrl-C stops it
    gracefully, a second Ctrl-C at once. Nothing of it survives this command, however it ends; with --detach it runs
    on, to be found by `k3ctl ps`, `k3ctl logs` and `k3ctl stop`. With --nodes several hosts are started as one through
    ssh, which must log in without a question: when one fails, all stop.
    """
    from k3ctl.commands.serve import rack, session
    from k3ctl.commands.serve.narrator import Narrator
    from k3ctl.engine import launch
    from k3ctl.profiles import loader
    from k3ctl.profiles.overrides import parse_set
    from k3ctl.profiles.resolve import resolve

    typed = parse_set(overrides or [])
    if profile is None:
        profile, adapted = session.choose(several=bool(nodes or master_addr or node_rank))
        typed = adapted | typed
    resolved = resolve(loader.load(profile), typed, os.environ)
    if model is not None:
        resolved = resolved.with_model_path(model)
    if nodes is not None:
        if node_rank is not None:
            raise UsageError("--nodes numbers the nodes itself: leave --node-rank out")
        return rack.serve(
            rack.Request(resolved, profile, typed, model, nodes, remote_k3ctl, node_timeout),
            rack.Launch(host, port, master_addr, master_port, verify, canary),
            checks=not skip_checks,
            detach=detach,
        )
    node = _node(node_rank, master_addr, master_port)
    here, unknown = (None, []) if skip_checks else session.check(resolved, typed)
    seen = session.seen(resolved, here)
    signal.signal(signal.SIGTERM, session.terminated)
    tell = Narrator()
    engine = launch.launch(resolved, host=host, port=port, node=node, any_version=skip_checks, seen=seen)
    try:
        warnings = session.warn(resolved, engine.run, unknown)
        tell.line(f"run `{engine.id}`, log {engine.run.engine_log}")
        run = engine.wait_ready(tell.stage)
        where = f"node {run.node_rank} of the server" if run.node_rank else "serving"
        tell.line(f"{where} `{run.served_model_name}` at {run.url}/v1")
        if verify and run.node_rank == 0:
            session.verify(run, tell, engine.api_key)
        if canary and run.node_rank == 0:
            session.canary(run, tell, engine.api_key)
        if detach:
            engine.detach()
            return session.result(run, warnings, session.after_detach(run))
        tell.line("Ctrl-C stops it")
        return session.stay(engine, tell, warnings)
    except (KeyboardInterrupt, session.Terminated) as stopped:
        return session.stopped(engine, tell, isinstance(stopped, KeyboardInterrupt))
    except BaseException:
        engine.stop()
        raise


def _node(rank: int | None, address: str | None, port: int | None) -> Node | None:
    from k3ctl.engine.node import MASTER_PORT, Node

    if rank is None and address is None:
        return None
    if rank is None or address is None:
        raise UsageError("--node-rank and --master-addr belong together: give both")
    return Node(rank, address, port if port is not None else MASTER_PORT)
