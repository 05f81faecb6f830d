"""The engine's command line and environment: what a resolved configuration becomes on this node."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3ctl import files
from k3ctl.engine import limits, rundir
from k3ctl.engine.node import Node
from k3ctl.engine.rundir import Run
from k3ctl.engine.territory import SCRATCH_PREFIX
from k3ctl.errors import UsageError
from k3ctl.host import network

if TYPE_CHECKING:
    from k3ctl.engine.preflight import Interpreter
    from k3ctl.profiles.resolve import ResolvedConfig

PLUGINS = ("k3_runtime", "k3_witness")
"""Our plugins: the model with the witness, and the routes that show it."""
WITNESS = "runtime.witness.worker.WitnessExtension"
"""Mixed into every worker: starts the witness of CUDA workers and answers for the rank's page."""
KEY = "VLLM_API_KEY"
PEER_SECRET = "K3CTL_PEER_SECRET"
IN_ENVIRONMENT = {"api_key": KEY, "hf_token": "HF_TOKEN"}
"""Arguments that vLLM also takes from a variable, which `ps` does not show to other users."""


@dataclass(frozen=True)
class Command:
    """What the engine is started with."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables that k3ctl sets; the rest of the environment is the caller's."""
    args: Mapping[str, Any]
    """vLLM's arguments by name, as they stand in ``argv``."""
    api_key: str | None = None


def build(
    resolved: ResolvedConfig,
    python: Interpreter,
    run: Run,
    scratch: tuple[str, str],
    environ: Mapping[str, str],
    node: Node | None = None,
) -> Command:
    """The engine's command line and the variables that k3ctl sets for it."""
    from k3ctl.profiles import vllm_args

    args, keys = _without_keys({"worker_extension_cls": WITNESS, **resolved.args})
    args |= {"host": run.host, "port": run.port}
    if node is not None:
        args |= {"node_rank": node.rank, "master_addr": node.master_addr, "master_port": node.master_port}
        args |= {"headless": True} if node.rank else {}
    words = vllm_args.argv(dataclasses.replace(resolved, args=args))
    env = {
        **resolved.env,
        **_reached_at(resolved, node, environ),
        **keys,
        "VLLM_PLUGINS": plugins(
            resolved.env.get("VLLM_PLUGINS", environ.get("VLLM_PLUGINS")), python.plugins
        ),
        "VLLM_RPC_BASE_PATH": scratch[0],
        "TMPDIR": scratch[1],
        # a cache, not scratch: it stays where torch would put it
        "TORCHINDUCTOR_CACHE_DIR": environ.get("TORCHINDUCTOR_CACHE_DIR") or _inductor_cache(),
        "K3_WITNESS_DIR": str(run.witness_dir),
        "K3_END_WITH_PARENT": "1",
        "PYTHONUNBUFFERED": "1",
    }
    key = env.get(KEY) or environ.get(KEY)
    start = (python.path, "-m", "vllm.entrypoints.cli.main", "serve", *words)
    return Command(start, env, args, key or None)


def _reached_at(resolved: ResolvedConfig, node: Node | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What tells vLLM and Gloo at which of its addresses the other nodes reach this one.

    A variable that somebody typed or exported stays. Without these, both look up the host's own name, which on many
    machines is loopback.
    """
    if node is None or node.address is None:
        return {}
    wanted = {"VLLM_HOST_IP": node.address, "GLOO_SOCKET_IFNAME": network.interface(node.address)}
    return {
        name: value
        for name, value in wanted.items()
        if value and not resolved.insists_on(name) and name not in environ
    }


def _without_keys(args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The arguments without keys, and the variables that hand them over: a command line is everyone's to read.

    Raises:
        UsageError: several API keys, which vLLM takes from its command line only.
    """
    left, keys = dict(args), {}
    for name, variable in IN_ENVIRONMENT.items():
        value = left.get(name)
        words = [word for word in (value if isinstance(value, list | tuple) else [value]) if word]
        if len(words) > 1:
            raise UsageError(
                f"`{name}` has {len(words)} values, which would stand in the engine's command line",
                hint=f"give one in {variable}; several clients need a gateway in front of the server",
            )
        if words and isinstance(words[0], str):
            del left[name]
            keys[variable] = words[0]
    return left, keys


def plugins(wanted: str | None, installed: Sequence[str]) -> str:
    """Value of ``VLLM_PLUGINS``: an allow-list, so naming ours must not lose what loads without it."""
    others = installed if wanted is None else [name for name in wanted.split(",") if name]
    return ",".join(dict.fromkeys([*PLUGINS, *others]))


def secret(environ: Mapping[str, str], file: Path) -> str:
    """What the nodes of a launch know and nobody else: ``K3CTL_PEER_SECRET``, else a file of the state directory.

    Nodes that share the user's home find the same file; the first to need it makes it.

    Raises:
        UsageError: the variable holds next to nothing, or the file cannot be made or read by this user alone.
    """
    given = environ.get(PEER_SECRET)
    if given is not None:
        if len(given) < 16:
            raise UsageError(
                f"{PEER_SECRET} has {len(given)} characters",
                hint="give every node the same 16 or more random ones",
            )
        return given
    try:
        with contextlib.suppress(FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True, mode=files.DIRECTORY)
            files.replace(file, secrets.token_hex(32).encode() + b"\n", exclusive=True)
        found = files.read(file, 4096).decode().strip()
        if not files.owned(file) or file.stat().st_mode & 0o077 or len(found) < 16:
            raise ValueError("it must be this user's alone and hold 16 characters or more")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the nodes' secret `{file}` cannot be used: {files.reason(error)}",
            hint=f"remove it, or give every node the same {PEER_SECRET}",
        ) from error
    return found


def group(
    resolved: ResolvedConfig, node: Node | None, environ: Mapping[str, str] = os.environ
) -> dict[str, Any] | None:
    """Fields of the ``peers.Group`` of a launch over several nodes."""
    if node is None:
        return None
    nodes = int(resolved.get("nnodes"))
    launch_id = f"{resolved.profile.name} {nodes} {node.master_addr}:{node.master_port}"
    key = node.secret or secret(environ, rundir.state_root() / "peers.secret")
    return {
        "rank": node.rank,
        "nodes": nodes,
        "address": node.master_addr,
        "port": node.heartbeat_port,
        "token": hmac.new(key.encode(), launch_id.encode(), hashlib.sha256).hexdigest(),
    }


def time_limits(resolved: ResolvedConfig) -> dict[str, str]:
    """Start-up limits for a model that is read or downloaded; a generated one needs none."""
    if resolved.profile.model.generated is not None:
        return {}
    checkpoint = limits.find(resolved.model, resolved.profile.model.revision, os.environ)
    if checkpoint is not None:
        rate = limits.read_rate(checkpoint.files)
        checkpoint = dataclasses.replace(checkpoint, read_bytes_s=rate)
    return limits.variables(checkpoint, {**os.environ, **resolved.env})


def scratch_directories() -> tuple[str, str]:
    """Directories for sockets and for temporary files; one and the same unless TMPDIR is too long for a socket.

    A socket's path may have 107 bytes, and vLLM appends 36 or more.
    """
    base = tempfile.gettempdir()
    temporary = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=base)
    return (
        temporary if len(temporary) <= 60 else tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir="/tmp")
    ), temporary


def _inductor_cache() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{user}")
