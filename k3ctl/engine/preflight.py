"""What must hold before an engine is started: a usable interpreter, vLLM in it, a free port.

Everything is refused here, before a process or a directory exists.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3ctl.engine import procs, rundir
from k3ctl.errors import MachineError, UsageError

if TYPE_CHECKING:
    from k3ctl.engine.node import Node
    from k3ctl.profiles.resolve import ResolvedConfig
    from k3ctl.profiles.schema import Profile

KNOWN_VLLM = ("0.33.0",)
"""Versions that the runtime was written for and tested with."""
LOADABLE_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)
"""Plugin groups that vLLM loads without being asked; endpoint plugins are loaded only when named."""

# a plain directory called `runtime` below the working directory is a namespace package: it has no origin
_PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({
  "python": list(sys.version_info[:3]), "vllm": version("vllm"), "torch": version("torch"),
  "runtime": getattr(u.find_spec("runtime"), "origin", None) is not None,
  "plugins": sorted({e.name for g in sys.argv[1:] for e in m.entry_points(group=g)}),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs the engine, and what is installed in it."""

    path: str
    python: tuple[int, ...]
    vllm: str
    torch: str
    plugins: tuple[str, ...]
    """Names of the installed vLLM plugins that load by default."""


def interpreter() -> Interpreter:
    """The engine's Python: ``$K3CTL_ENGINE_PYTHON`` or the one that runs k3ctl.

    Raises:
        UsageError: the variable names nothing that runs.
        MachineError: it is too old, or vLLM or the runtime is not installed in it.
    """
    own = os.environ.get("K3CTL_ENGINE_PYTHON")
    path = own or sys.executable
    if shutil.which(path) is None:
        raise UsageError(f"K3CTL_ENGINE_PYTHON names `{path}`, which is no program")
    try:
        done = subprocess.run(
            [path, "-c", _PROBE, *LOADABLE_GROUPS], capture_output=True, text=True, timeout=60, check=False
        )
        facts = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"`{path}` does not work as a Python for the engine: {error or 'no answer'}"
        ) from error
    found = tuple(facts["python"])
    if found < (3, 11):
        raise MachineError(
            f"the engine needs Python 3.11 or newer, `{path}` is {'.'.join(map(str, found))}",
            hint="run `make setup` with a newer python3, or set K3CTL_ENGINE_PYTHON",
        )
    missing = next((name for name in ("vllm", "torch") if facts[name] is None), None)
    if missing is not None:
        raise MachineError(
            f"{missing} is not installed for `{path}`",
            hint=how_to_get_an_engine(),
        )
    if not facts["runtime"]:
        raise MachineError(
            f"k3ctl's `runtime` package is not installed for `{path}`",
            hint=f"run `{path} -m pip install --no-deps k3ctl`",
        )
    return Interpreter(path, found, facts["vllm"], facts["torch"], tuple(facts["plugins"]))


def in_checkout() -> bool:
    """Whether this k3ctl lies in its source tree, where `make setup` works."""
    return (Path(__file__).parents[2] / "scripts" / "setup_env.py").is_file()


def how_to_get_an_engine() -> str:
    """One line for a machine without vLLM."""
    other = "or name the Python of another vLLM in K3CTL_ENGINE_PYTHON"
    if in_checkout():
        return f"run `make setup` (no GPU) or `make setup-gpu`, {other}"
    return f"with GPUs `pip install 'k3ctl[gpu,bench]'`, without `make setup` in a checkout of k3ctl, {other}"


def free_port(host: str, port: int) -> int:
    """``port`` itself when it can be listened on, a free one for 0.

    Raises:
        UsageError: the address is not one of this machine's, or the port is no port.
        PortInUse: the message names the pid, or the run, that holds it.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port} is not between 0 and 65535")
    try:
        if port == 0:
            return procs.free_port(host)
    except OSError as error:
        raise UsageError(f"cannot listen on `{host}`: {error.strerror or error}") from error
    if not procs.port_is_free(host, port):
        _refuse_port(host, port)
    return port


def _refuse_port(host: str, port: int) -> None:
    try:
        procs.free_port(host)
    except OSError as error:
        raise UsageError(f"cannot listen on `{host}`: {error.strerror or error}") from error
    mine = next((run for run in rundir.all_runs() if run.port == port and run.live()), None)
    pid = procs.listener(port)
    if mine is not None:
        raise PortInUse(
            f"port {port} is taken by run `{mine.id}` (pid {pid or mine.pid})",
            hint=f"stop it with `k3ctl stop {mine.id}`, or take a free port with `--port 0`",
        )
    if pid is not None:
        who = f"pid {pid}: {procs.command_line(pid, 80)}"
    elif port < 1024 and os.geteuid() != 0:
        raise UsageError(f"port {port} is below 1024: only root may listen there", hint="take `--port 8000`")
    else:
        who = "a process of another user"
    raise PortInUse(f"port {port} is taken ({who})", hint="take a free port with `--port 0`")


class PortInUse(MachineError):
    """Somebody listens on the wanted port already."""

    code = "port-in-use"


def version(python: Interpreter, profile: Profile) -> None:
    """Refuse a vLLM that the profile is not made for.

    Raises:
        MachineError: it is outside the profile's range.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    wanted = profile.requires.vllm
    try:
        fits = SpecifierSet(wanted, prereleases=True).contains(Version(python.vllm))
    except InvalidVersion:
        fits = False
    if not fits:
        raise MachineError(
            f"`{profile.name}` needs vLLM {wanted}, `{python.path}` has {python.vllm}",
            hint="install a version in that range, or start anyway with --skip-checks",
        )


def nodes(resolved: ResolvedConfig, node: Node | None) -> None:
    """Refuse a launch over several nodes without this node's place in it, and a place without such a launch.

    Raises:
        UsageError: the two disagree.
    """
    count = int(resolved.get("nnodes") or 1)
    if count > 1 and node is None:
        raise UsageError(
            f"this configuration spans {count} nodes: say which one this is",
            hint="add `--node-rank 0 --master-addr ADDRESS` here, and the other ranks on the other nodes",
        )
    if node is not None and not 0 <= node.rank < count:
        raise UsageError(f"--node-rank {node.rank} is not one of this configuration's {count} nodes")


def model_directory(model: str) -> None:
    """Refuse a model that is written as a path and is not there.

    Raises:
        UsageError: a missing directory, or one without ``config.json``.
    """
    if not model.startswith(("/", "./", "../", "~")):
        return
    path = Path(model).expanduser()
    if not path.is_dir():
        raise UsageError(f"the model directory `{model}` does not exist", hint="give it with `--model DIR`")
    if not (path / "config.json").is_file():
        raise UsageError(f"`{model}` holds no config.json: not a model directory")
