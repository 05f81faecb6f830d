"""Create ``.venv`` with what k3ctl needs: ``setup_env.py {cpu,dev,gpu,kernels,quality}``. Standard library; repeatable.

cpu   the engine without kernels (official vLLM from its source distribution), CPU torch, GuideLLM, k3ctl
dev   cpu and the tools the tests need
gpu   the CUDA engine from its published wheel, GuideLLM, k3ctl (on a GPU host)
kernels   what compiles and audits the kernels, laid over a `dev` environment (``--over``): torch and pytest come from
          there, Triton stays out of it, because beside the CPU engine it would change that one's behaviour
quality   lm-evaluation-harness, apart from the engine, whose packages it must not change

Every finished step leaves a stamp of its inputs, so that an interrupted run goes on where it stopped and a repeated
one does nothing. Everything pip prints goes to ``.venv/setup.log``.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VLLM = "0.33.0"
TORCH = "2.13.0"
FREE_DISK_GB = {"cpu": 4, "dev": 4, "gpu": 15, "kernels": 2, "quality": 2}

# vLLM's requirements that the CPU engine does without. torch comes first and by itself; the rest are CUDA builds that
# cannot load beside a CPU torch, or serve video.
LEFT_OUT = {
    "torch",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "triton",
    "xgrammar",
    "opencv-python-headless",
}
# imported by vLLM's runner, and by xgrammar, although the metadata we follow do not list them
ADDED = ["numba==0.65.0", "apache-tvm-ffi"]
XGRAMMAR = "xgrammar==0.2.8"  # installed without its requirement triton (1 GB)
BUILD = ["setuptools<81", "setuptools_scm", "setuptools_rust", "wheel", "packaging"]

HINTS = (
    ("No module named ensurepip", "install the venv module, e.g. `apt-get install python3-venv`"),
    ("ensurepip is not", "install the venv module, e.g. `apt-get install python3-venv`"),
    ("Python.h", "install the Python headers, e.g. `apt-get install python3-dev build-essential`"),
    ("command 'gcc' failed", "install a C compiler, e.g. `apt-get install build-essential`"),
    ("command 'g++' failed", "install a C++ compiler, e.g. `apt-get install build-essential`"),
    ("No space left on device", "free some disk space and run the same command again"),
    (
        "Temporary failure in name resolution",
        "no package index can be reached: check the network or pip's index-url",
    ),
    (
        "Failed to establish a new connection",
        "no package index can be reached: check the network or pip's index-url",
    ),
    ("Read timed out", "the package index is slow or unreachable: run the same command again"),
)


class SetupError(Exception):
    """What failed and what to do."""


@dataclass(frozen=True)
class Step:
    """One step: what it installs (``inputs`` decide whether it is up to date) and how."""

    name: str
    inputs: str
    run: Callable[[], None]


class Environment:
    """A virtual environment with its log and stamps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self.log = path / "setup.log"
        self.stamp_file = path / "setup.json"
        self.packages = path / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"

    def create(self) -> None:
        """Make the environment, or make it anew when it is broken or of another Python."""
        wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
        if self.path.exists():
            probe = [self.python, "-c", "import sys,pip; print('%d.%d' % sys.version_info[:2])"]
            found = attempt(probe) if self.python.exists() else None
            if found is not None and found.returncode == 0 and found.stdout.strip() == wanted:
                return
            print(f"  {self.path.name} is broken or of another Python: made anew")
            shutil.rmtree(self.path)
        made = attempt([sys.executable, "-m", "venv", self.path])
        if made.returncode:
            shutil.rmtree(self.path, ignore_errors=True)
            raise SetupError(explain("python -m venv failed", made.stdout + made.stderr))

    def stamps(self) -> dict[str, str]:
        """Digests of the finished steps."""
        try:
            return dict(json.loads(self.stamp_file.read_text()))
        except (OSError, ValueError):
            return {}

    def mark(self, step: Step) -> None:
        """Remember that ``step`` is done."""
        stamps = self.stamps() | {step.name: digest(step.inputs)}
        scratch = self.stamp_file.with_suffix(".tmp")
        scratch.write_text(json.dumps(stamps, indent=1))
        scratch.replace(self.stamp_file)

    def pip(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        """``pip install …`` into the environment, output to the log."""
        command = [
            str(self.python),
            "-m",
            "pip",
            "install",
            "--no-input",
            "--disable-pip-version-check",
            "--no-compile",  # pip would use one core; the last step uses all
            *arguments,
        ]
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            start = log.tell()
            environ = {**os.environ, **(env or {})}
            code = subprocess.run(command, stdout=log, stderr=log, env=environ, check=False).returncode
        if code:
            said = self.log.read_bytes()[start:].decode(errors="replace")
            raise SetupError(explain(f"pip failed (log: {self.log})", said))

    def compile(self) -> None:
        """Bytecode for everything installed, on all cores."""
        # a file of another Python's syntax in some package is not our failure
        subprocess.run(
            [self.python, "-m", "compileall", "-q", "-j", "0", self.packages],
            check=False,
            capture_output=True,
        )

    def output(self, code: str) -> str:
        """Run Python code in the environment."""
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout


def attempt(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a command whose failure is the caller's business."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def explain(what: str, output: str) -> str:
    """The failing line and, for a known cause, what to do."""
    errors = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    lines = [f"error: {what}", *(f"  {line[:300]}" for line in errors[-3:])]
    for pattern, hint in HINTS:
        if pattern in output:
            return "\n".join([*lines, f"hint: {hint}"])
    return "\n".join(lines)


def digest(text: str) -> str:
    """Short digest of a step's inputs."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def engine_requirements(env: Environment) -> list[str]:
    """What the installed vLLM asks for, less what the CPU engine does without."""
    code = (
        "from importlib.metadata import requires\nfrom packaging.requirements import Requirement\n"
        "for r in map(Requirement, requires('vllm')):\n"
        "    if r.marker is None or r.marker.evaluate({'extra': ''}): r.marker = None; print(r.name + '\\t' + str(r))"
    )
    rows = [line.split("\t") for line in env.output(code).splitlines()]
    # mistral_common's image extra would bring OpenCV back
    return [
        r.replace("[image]", "") for name, r in rows if name.lower().replace("_", "-") not in LEFT_OUT
    ] + ADDED


def cpu_steps(env: Environment, torch_index: str | None, extras: str) -> list[Step]:
    """The order matters: torch before anything that would pull a CUDA build, vLLM before its requirements.

    Locked packages go in without resolving, which takes pip minutes. The last step resolves over what is there: on
    the Python of the locks it installs nothing more than k3ctl itself.
    """
    locks = [
        ROOT / "requirements" / f"{name}.lock" for name in ("cpu", "dev") if name == "cpu" or "dev" in extras
    ]
    pinned = [argument for lock in locks for argument in ("-c", str(lock))]
    index = ["--extra-index-url", torch_index] if torch_index else []
    build_env = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VLLM}

    def torch() -> None:
        env.pip(f"torch=={TORCH}", *index, *pinned)

    def locked() -> None:
        env.pip("--no-deps", XGRAMMAR, *(argument for lock in locks for argument in ("-r", str(lock))))

    def engine() -> None:
        # the source distribution, without build isolation: an isolated build would fetch a CUDA torch to build with
        env.pip(*BUILD, *pinned)
        env.pip("--no-deps", "--no-build-isolation", "--no-binary", "vllm", f"vllm=={VLLM}", env=build_env)

    def requirements() -> None:
        extra = f"{ROOT}[{extras}]"
        env.pip(*engine_requirements(env), f"torch=={TORCH}", "-e", extra, *index, *pinned)

    text = "".join(lock.read_text() for lock in locks)
    project = (ROOT / "pyproject.toml").read_text() + extras + str(ROOT)
    return [
        Step("torch", TORCH + str(torch_index), torch),
        Step("locked packages", text + XGRAMMAR, locked),
        Step(f"vLLM {VLLM} without kernels", VLLM + " ".join(BUILD), engine),
        Step(f"requirements and k3ctl[{extras}]", text + project + " ".join(ADDED), requirements),
        Step("bytecode", text + VLLM + TORCH, env.compile),
    ]


def gpu_steps(env: Environment) -> list[Step]:
    """The published wheel and its CUDA requirements."""
    inputs = (ROOT / "pyproject.toml").read_text() + str(ROOT)
    install = Step("vLLM for CUDA, GuideLLM, k3ctl", inputs, lambda: env.pip("-e", f"{ROOT}[gpu,bench]"))
    return [install, Step("bytecode", inputs, env.compile)]


def kernel_steps(env: Environment, base: Environment) -> list[Step]:
    """The compilers of the kernels, over the packages of `base`."""
    import tomllib  # not in a Python that `check_machine` refuses

    if not base.python.exists():
        raise SetupError(f"error: no environment in {base.path}\nhint: `make setup-kernels` makes it first")
    lock = ROOT / "requirements" / "kernels.lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = project["optional-dependencies"]["kernels"]

    def overlay() -> None:
        (env.packages / "base.pth").write_text(f"{base.packages}\n")

    def compilers() -> None:
        env.pip("--no-deps", "-r", str(lock))
        env.pip(*packages, "-c", str(lock))  # on the Python of the lock this finds everything there

    text = lock.read_text() + " ".join(packages)
    return [
        Step("overlay", str(base.packages), overlay),
        Step("compilers of the kernels", text, compilers),
        Step("bytecode", text, env.compile),
    ]


def quality_steps(env: Environment) -> list[Step]:
    """The evaluation harness. It talks to a server over HTTP and needs nothing of ours."""
    import tomllib

    lock = ROOT / "requirements" / "quality.lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = project["optional-dependencies"]["quality"]

    def harness() -> None:
        env.pip("--no-deps", "-r", str(lock))
        env.pip(*packages, "-c", str(lock))

    text = lock.read_text() + " ".join(packages)
    return [Step("lm-evaluation-harness", text, harness), Step("bytecode", text, env.compile)]


def run(env: Environment, steps: Sequence[Step]) -> None:
    """Run the steps that are not up to date. A later step is redone when an earlier one was."""
    redo = False
    for step in steps:
        if not redo and env.stamps().get(step.name) == digest(step.inputs):
            continue
        redo = True
        started = time.monotonic()
        print(f"  {step.name} …", flush=True)
        step.run()
        env.mark(step)
        print(f"  {step.name}: {time.monotonic() - started:.0f} s", flush=True)


def check_machine(mode: str, venv: Path) -> None:
    """Fail early, in one line."""
    if sys.version_info < (3, 11):  # noqa: UP036  # this script runs before anything checked the version
        raise SetupError(
            f"error: Python {sys.version.split()[0]} is too old\n"
            "hint: k3ctl needs Python 3.11 or newer: `make … PYTHON=python3.12`"
        )
    if sys.platform != "linux":
        raise SetupError(
            f"error: vLLM does not run on {sys.platform}\nhint: use a Linux machine or container"
        )
    free_gb = shutil.disk_usage(venv.parent).free / 1e9
    if not venv.exists() and free_gb < FREE_DISK_GB[mode]:
        raise SetupError(
            f"error: {free_gb:.1f} GB free in {venv.parent}, {FREE_DISK_GB[mode]} GB needed\nhint: free some space"
        )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["cpu", "dev", "gpu", "kernels", "quality"])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--torch-index", default=os.environ.get("TORCH_INDEX"), help="index with CPU builds of torch"
    )
    parser.add_argument(
        "--over", type=Path, default=ROOT / ".venv", help="environment under that of `kernels`"
    )
    args = parser.parse_args()
    venv = args.venv.resolve()
    try:
        check_machine(args.mode, venv)
        with (venv.parent / f".{venv.name.lstrip('.')}.setup.lock").open("w") as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # two makes at once: the second waits, then finds everything done
            env = Environment(venv)
            env.create()
            if args.mode == "gpu":
                steps = gpu_steps(env)
            elif args.mode == "kernels":
                steps = kernel_steps(env, Environment(args.over.resolve()))
            elif args.mode == "quality":
                steps = quality_steps(env)
            else:
                # a test environment serves the demo as well: never shrink it
                full = args.mode == "dev" or any("bench,dev" in name for name in env.stamps())
                steps = cpu_steps(env, args.torch_index or None, "bench,dev" if full else "bench")
            run(env, steps)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
