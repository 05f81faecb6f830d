"""A virtual environment, set up in steps: packages by uv, or by pip where uv cannot be had. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pip_settings

UV = "0.13.9"
BEGUN = "begun"
HALF_MADE = {"bin", "include", "lib", "lib64"}
"""What `python -m venv` makes before it writes pyvenv.cfg."""
RARELY_IMPORTED = (
    r"/(tests?|testing)/|/(transformers/models|vllm/models|vllm/model_executor/models|faker/providers|openai/resources"
    r"|anthropic|pygments/lexers|numba|sympy/physics|pip)/"
)
"""Half of all source; `k3ctl demo` imports 155 of these 12,000 files."""
NO_SPACE = "No space left on device"
VENV_MODULE = "install the venv module, e.g. `apt-get install python3-venv`"
NETWORK = "no package index can be reached: check the network or pip's index-url"
HINTS = (
    ("No module named ensurepip", VENV_MODULE),
    ("ensurepip is not", VENV_MODULE),
    ("No module named venv", VENV_MODULE),
    ("Python.h", "install the Python headers, e.g. `apt-get install python3-dev build-essential`"),
    ("command 'gcc' failed", "install a C compiler, e.g. `apt-get install build-essential`"),
    ("command 'g++' failed", "install a C++ compiler, e.g. `apt-get install build-essential`"),
    (NO_SPACE, "free some disk space and run the same command again"),
    ("Disk quota exceeded", "free some disk space and run the same command again"),
    ("Temporary failure in name resolution", NETWORK),
    ("Failed to establish a new connection", NETWORK),
    ("Cannot connect to proxy", "the proxy cannot be reached: check HTTPS_PROXY and pip's proxy setting"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the index's certificate is not trusted: name your organisation's certificates in pip's `cert` setting",
    ),
    ("Read timed out", "the package index is slow or unreachable: run the same command again"),
    (
        "No matching distribution found",
        "the index lacks this version for this Python: check pip's index settings, or use Python 3.11",
    ),
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
    """A virtual environment with its log and stamps.

    ``installer``: ``uv`` or ``pip``. ``base``: an environment below this one, whose uv serves as well.
    """

    def __init__(self, path: Path, installer: str = "uv", base: Path | None = None) -> None:
        self.path = path
        self._beside = [path, base] if base else [path]
        self.python = path / "bin" / "python"
        self.log = path / "setup.log"
        self.stamp_file = path / "setup.json"
        self.packages = path / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
        self._uv: Path | None = None
        self._settings = pip_settings.UvSettings()
        self._installer = installer
        self._asked_for_uv = False
        self._again = False

    def create(self) -> None:
        """Make the environment, or make it anew when it is broken or of another Python."""
        wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
        if self.path.exists():
            probe = [self.python, "-c", "import sys,pip; print('%d.%d' % sys.version_info[:2])"]
            if attempt(probe).stdout.strip() == wanted:
                return
            self._discard()
        made = attempt([sys.executable, "-m", "venv", self.path])
        if made.returncode:
            shutil.rmtree(self.path, ignore_errors=True)
            raise SetupError(explain("python -m venv failed", made.stdout + made.stderr))

    def _discard(self) -> None:
        """Remove a broken environment; never a directory that is something else."""
        holds = {entry.name for entry in self.path.iterdir()} if self.path.is_dir() else {"itself"}
        if "pyvenv.cfg" not in holds and not holds <= HALF_MADE:
            raise SetupError(
                f"error: {self.path} exists and is no virtual environment\n"
                "hint: move it away, or name another place: `make … VENV=DIR`"
            )
        print(f"  {self.path.name} is broken or of another Python: made anew", flush=True)
        shutil.rmtree(self.path)

    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps that are not up to date. A later step is redone when an earlier one was.

        A step that was begun and not finished installs its packages once more: one that was half unpacked when the
        machine stopped looks whole to an installer.
        """
        done = self.stamps()
        begun = done.pop(BEGUN, "")
        current = [done.get(step.name) == digest(step.inputs) for step in steps]
        first = current.index(False) if False in current else len(steps)
        done |= dict.fromkeys((step.name for step in steps[first:]), "")
        for step in steps[first:]:
            self._again = step.name == begun
            self._write(done | {BEGUN: step.name})
            started = time.monotonic()
            print(f"  {step.name} …", flush=True)
            step.run()
            done[step.name] = digest(step.inputs)
            self._write(done)
            print(f"  {step.name}: {time.monotonic() - started:.0f} s", flush=True)

    def stamps(self) -> dict[str, str]:
        """Digests of the finished steps, and under ``begun`` the name of one that is not finished."""
        try:
            return dict(json.loads(self.stamp_file.read_text()))
        except (OSError, ValueError):
            return {}

    def _write(self, stamps: dict[str, str]) -> None:
        scratch = self.stamp_file.with_suffix(".tmp")
        scratch.write_text(json.dumps(stamps, indent=1))
        scratch.replace(self.stamp_file)

    def install(
        self, *arguments: str, env: dict[str, str] | None = None, index: str | None = None, cache: bool = True
    ) -> None:
        """Install by uv, and by pip where uv cannot be had or fails. ``index``: one more to look in.

        ``cache=False``: what is built here must not be taken for the published package later.
        """
        if self._find_uv():
            environ = self._settings.over({**os.environ, **(env or {})}, index)
            code, said = self._logged(self._uv_command(*arguments, cache=cache), environ)
            if code == 0:
                return
            if NO_SPACE in said:
                raise SetupError(explain(f"uv failed (log: {self.log})", said))
            print(f"  uv failed ({last_line(said)}): pip goes on", flush=True)
            self._uv, self._again = None, True  # what uv left half unpacked looks whole to pip
        first = ["--force-reinstall"] if self._again else []
        last = ["--extra-index-url", index] if index else []
        self.pip(*first, *([] if cache else ["--no-cache-dir"]), *arguments, *last, env=env)

    def pip(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        """``pip install …`` into the environment, output to the log."""
        code, said = self._logged(self._pip_command(*arguments), {**os.environ, **(env or {})})
        if code:
            raise SetupError(explain(f"pip failed (log: {self.log})", said))

    def compile(self) -> None:
        """Bytecode on all cores; Python itself compiles the rest when it is first imported."""
        with self.compiling():
            pass

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Compile beside the block: for one that waits for the network, or keeps one core busy."""
        words = ["-m", "compileall", "-q", "-j", "0", "-x", RARELY_IMPORTED, str(self.packages)]
        # a file of another Python's syntax in some package is not our failure
        child = subprocess.Popen(
            [self.python, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
            child.wait()
        finally:
            if child.poll() is None:  # its workers too
                os.killpg(child.pid, signal.SIGTERM)
                child.wait()

    def output(self, code: str) -> str:
        """Run Python code in the environment."""
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout

    def _find_uv(self) -> Path | None:
        """uv of the pinned version in this environment, brought by pip; None where pip has to install."""
        if self._installer == "uv" and not self._asked_for_uv:
            self._asked_for_uv = True
            self._uv = self._bring_uv()
        return self._uv

    def _bring_uv(self) -> Path | None:
        listing = attempt([self.python, "-m", "pip", "config", "list"])
        version = attempt([self.python, "-m", "pip", "--version"]).stdout.removeprefix("pip ")
        settings = pip_settings.parse(listing.stdout)
        self._settings = pip_settings.translate(settings, version)
        if self._settings.refused:
            print(f"  pip installs: uv has no word for its {', '.join(self._settings.refused)}", flush=True)
            return None
        for folder in self._beside:
            found = folder / "bin" / "uv"
            if attempt([found, "--version"]).stdout.split()[1:2] == [UV]:
                return found
        started = time.monotonic()
        code, said = self._logged(
            self._pip_command("--retries", "1", "--force-reinstall", f"uv=={UV}"), os.environ
        )
        if code:
            print(f"  pip installs: uv {UV} could not be had ({last_line(said)})", flush=True)
            return None
        print(f"  uv {UV}: {time.monotonic() - started:.0f} s", flush=True)
        return self.path / "bin" / "uv"

    def _pip_command(self, *arguments: str) -> list[str]:
        # pip would compile on one core; the last step uses all
        quiet = ["--no-input", "--disable-pip-version-check", "--no-compile"]
        return [str(self.python), "-m", "pip", "install", *quiet, *arguments]

    def _uv_command(self, *arguments: str, cache: bool) -> list[str]:
        options = ["--no-progress", "--color", "never", *self._settings.arguments]
        options += ["--reinstall"] if self._again else []
        options += [] if cache else ["--no-cache"]
        return [str(self._uv), "pip", "install", "--python", str(self.python), *options, *arguments]

    def _logged(self, command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
        """Run a command, output to the log; its exit status and what it said."""
        with self.log.open("ab") as log:
            log.write(f"\n$ {pip_settings.shown(command)}\n".encode())
            log.flush()
            start = log.tell()
            try:
                code = subprocess.run(command, stdout=log, stderr=log, env=environ, check=False).returncode
            except OSError as error:
                return 127, str(error)
        if not code:
            return 0, ""
        return code, self.log.read_bytes()[start:].decode(errors="replace")


def attempt(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a command whose failure, also to start, is the caller's business."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def last_line(output: str) -> str:
    """What a failed command said last, short."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return pip_settings.shown([lines[-1][:200]]) if lines else "without a word"


def explain(what: str, output: str) -> str:
    """The failing line and, for a known cause, what to do."""
    for pattern, hint in HINTS:
        if pattern in output:
            cause = output[output.rindex(pattern) :].partition("\n")[0].strip("')\" ")
            return f"error: {what}\n  {pip_settings.shown([cause[:200]])}\nhint: {hint}"
    errors = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    return "\n".join([f"error: {what}", *(f"  {pip_settings.shown([line[:300]])}" for line in errors[-3:])])


def digest(text: str) -> str:
    """Short digest of a step's inputs."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
