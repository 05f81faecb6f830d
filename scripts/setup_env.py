"""Create ``.venv`` with what k3ctl needs: ``setup_env.py MODE``. Standard library only; safe to repeat.

cpu   the engine without kernels (official vLLM from its source distribution), CPU torch, GuideLLM, k3ctl
dev   cpu and the tools the tests need
gpu   the CUDA engine from its published wheel, GuideLLM, k3ctl (on a GPU host)
kernels   what compiles and audits the kernels, laid over a `dev` environment (``--over``): torch and pytest come from
          there, Triton stays out of it, because beside the CPU engine it would change that one's behaviour
quality   lm-evaluation-harness, apart from the engine, whose packages it must not change
aiperf   the client of agent sessions, apart from k3ctl, whose textual it would replace by an older one

Every finished step leaves a stamp of its inputs, so that an interrupted run goes on where it stopped and a repeated
one does nothing. uv installs, brought into the environment by pip and told pip's settings; pip installs where uv cannot
be had or fails. Everything that they print goes to ``.venv/setup.log``.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # here, since an older Python cannot read what is imported below
    sys.stderr.write("error: Python {} is too old\n".format(sys.version.split()[0]))  # noqa: UP032
    sys.stderr.write("hint: k3ctl needs Python 3.11 or newer: `make … PYTHON=python3.12`\n")
    sys.exit(3)

import argparse
import fcntl
import os
import shutil
from pathlib import Path

from environment import RARELY_IMPORTED, Environment, SetupError, Step, explain

ROOT = Path(__file__).resolve().parent.parent
VLLM = "0.33.0"
AIPERF = "aiperf==0.13.0"
TORCH = "2.13.0"
FREE_DISK_GB = {"cpu": 4, "dev": 4, "gpu": 15, "kernels": 2, "quality": 2, "aiperf": 2}

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
    build_env = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VLLM}

    def torch() -> None:
        env.install(f"torch=={TORCH}", *pinned, index=torch_index)

    def locked() -> None:
        env.install("--no-deps", XGRAMMAR, *(argument for lock in locks for argument in ("-r", str(lock))))

    def engine() -> None:
        # the source distribution, without build isolation: an isolated build would fetch a CUDA torch to build with
        env.install(*BUILD, *pinned)
        source = ["--no-deps", "--no-build-isolation", "--no-binary", "vllm", f"vllm=={VLLM}"]
        with env.compiling():  # what is there already, while the download and a build on one core go on
            env.install(*source, env=build_env, cache=False)

    def requirements() -> None:
        extra = f"{ROOT}[{extras}]"
        env.install(*engine_requirements(env), f"torch=={TORCH}", "-e", extra, *pinned, index=torch_index)

    text = "".join(lock.read_text() for lock in locks)
    project = (ROOT / "pyproject.toml").read_text() + extras + str(ROOT)
    return [
        Step("torch", TORCH + str(torch_index), torch),
        Step("locked packages", text + XGRAMMAR, locked),
        Step(f"vLLM {VLLM} without kernels", VLLM + " ".join(BUILD), engine),
        Step(f"requirements and k3ctl[{extras}]", text + project + " ".join(ADDED), requirements),
        Step("bytecode", text + VLLM + TORCH + RARELY_IMPORTED, env.compile),
    ]


def gpu_steps(env: Environment) -> list[Step]:
    """The published wheel and its CUDA requirements."""
    inputs = (ROOT / "pyproject.toml").read_text() + str(ROOT)
    install = Step("vLLM for CUDA, GuideLLM, k3ctl", inputs, lambda: env.install("-e", f"{ROOT}[gpu,bench]"))
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
        env.install("--no-deps", "-r", str(lock))
        # pip, because uv does not see the packages of `base`; on the Python of the lock it finds everything there
        env.pip(*packages, "-c", str(lock))

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
        env.install("--no-deps", "-r", str(lock))
        env.install(*packages, "-c", str(lock))

    text = lock.read_text() + " ".join(packages)
    return [Step("lm-evaluation-harness", text, harness), Step("bytecode", text, env.compile)]


def aiperf_steps(env: Environment) -> list[Step]:
    """aiperf: a program that k3ctl starts."""
    lock = ROOT / "requirements" / "aiperf.lock"

    def client() -> None:
        env.install("--no-deps", "-r", str(lock))
        env.install(AIPERF, "-c", str(lock))  # on the Python of the lock this finds everything there

    text = lock.read_text() + AIPERF
    return [Step(AIPERF, text, client), Step("bytecode", text, env.compile)]


def check_machine(mode: str, venv: Path) -> None:
    """Fail early, in one line."""
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
    parser.add_argument("mode", choices=["cpu", "dev", "gpu", "kernels", "quality", "aiperf"])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--torch-index", default=os.environ.get("TORCH_INDEX"), help="index with CPU builds of torch"
    )
    parser.add_argument(
        "--over", type=Path, default=ROOT / ".venv", help="environment under that of `kernels`"
    )
    parser.add_argument(
        "--installer",
        choices=["uv", "pip"],
        default="uv",
        help="pip: leave uv out, e.g. where it may not be used",
    )
    args = parser.parse_args()
    venv = args.venv.resolve()
    try:
        check_machine(args.mode, venv)
        with (venv.parent / f".{venv.name.lstrip('.')}.setup.lock").open("w") as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # two makes at once: the second waits, then finds everything done
            over = args.over.resolve() if args.mode in ("kernels", "quality", "aiperf") else None
            env = Environment(venv, args.installer, over)
            env.create()
            if args.mode == "gpu":
                steps = gpu_steps(env)
            elif args.mode == "kernels":
                steps = kernel_steps(env, Environment(args.over.resolve()))
            elif args.mode == "quality":
                steps = quality_steps(env)
            elif args.mode == "aiperf":
                steps = aiperf_steps(env)
            else:
                # a test environment serves the demo as well: never shrink it
                full = args.mode == "dev" or any("bench,dev" in name for name in env.stamps())
                steps = cpu_steps(env, args.torch_index or None, "bench,dev" if full else "bench")
            env.run(steps)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 3
    except OSError as error:
        print(explain(f"cannot set up {venv}", f"error: {error}"), file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
