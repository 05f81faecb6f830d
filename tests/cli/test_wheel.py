"""The wheel alone: built, laid beside nothing but its declared requirements, run from an empty directory."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEAD = "http://127.0.0.1:9"

pytest.importorskip("hatchling", reason="the wheel is built with it: `make setup-dev` brings it")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (made,) = target.glob("*.whl")
    return made


def declared() -> Iterator[importlib.metadata.Distribution]:
    """What `pip install k3ctl` would bring: the requirements without extras, and what they require."""
    waiting, seen = list(PROJECT["dependencies"]), set[str]()
    while waiting:
        wanted = Requirement(waiting.pop())
        extras = {"", *wanted.extras}
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": e}) for e in extras):
            continue
        name = canonicalize_name(wanted.name)
        if name not in seen:
            seen.add(name)
            found = importlib.metadata.distribution(wanted.name)
            waiting += [text for text in found.requires or () if "extra ==" not in text]
            yield found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and what it declares: no engine, no client, no test tools."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    for found in declared():
        tops = {
            Path(file).parts[0]
            for file in found.files or ()
            if ".." not in Path(file).parts and "__pycache__" not in file.parts[0]
        }
        for top in tops:
            (packages / top).symlink_to(Path(str(found.locate_file(top))))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return place / "bin" / "python"


@pytest.fixture
def run(python: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    """k3ctl in that environment, from an empty directory, with a home of its own and none of our variables."""
    empty = tmp_path / "empty"
    empty.mkdir()
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def k3ctl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "k3ctl", *words]
        done = subprocess.run(
            command, cwd=empty, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert "this is a bug" not in done.stderr, done.stderr
        return done

    return k3ctl


def test_the_wheel_holds_every_file_that_the_packages_need_and_no_test(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = set()
    for package in ("k3ctl", "runtime"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and not path.match("test_*.py"):
                wanted.add(path.relative_to(ROOT).as_posix())
    wanted |= {f"k3ctl/profiles/builtin/{path.name}" for path in (ROOT / "profiles").glob("*.yaml")}
    assert wanted - inside == set()
    assert [name for name in inside if re.search(r"(^|/)(test_[^/]*\.py|__pycache__)", name)] == []


def test_its_metadata_name_the_command_the_plugins_and_the_ways_to_an_engine(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            Path(name).name: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name
        }
    said = Parser().parsestr(texts["METADATA"])
    assert {"gpu", "bench"} <= set(said.get_all("Provides-Extra") or ())
    assert "k3ctl = k3ctl.cli:run" in texts["entry_points.txt"]
    assert "[vllm.general_plugins]" in texts["entry_points.txt"]


def slow(*values: object) -> object:
    """A case for `make test-slow`: each is a process that starts Python."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("words", "codes", "says"),
    [
        slow("--version", {0}, "k3ctl"),
        slow("--help", {0}, "First steps"),
        ("", {0}, "next:"),
        slow("next --json", {0}, '"command"'),
        ("doctor", {0, 1, 3}, "can run here"),
        slow("doctor --json", {0, 1, 3}, "k3ctl.doctor"),
        slow("profiles list", {0}, "gb300-tp16"),
        slow("profiles show cpu-tiny", {0}, "vllm serve"),
        ("plan --hardware GB300:16", {0, 1}, "gb300-tp16"),
        slow("plan gb300-tp16 --hardware GB300:16 --render kubernetes", {0}, "kind:"),
        slow("bench --list", {0}, "8k1k"),
        slow(f"bench 8k1k --dry-run --url {DEAD} --model m --tokenizer t", {0}, "profile.streams"),
        slow(f"bench judge {FIXTURES / 'guidellm-8k1k-consistent-c4.json'} --preset 8k1k", {0, 1}, "8k1k"),
        slow(f"triage {FIXTURES / 'vllm-log-capture-oom.txt'}", {1}, "memory"),
        slow(f"monitor --replay {FIXTURES / 'recording-cpu-tiny.jsonl'} --once", {0}, "tok/s"),
        slow("ps", {0}, "no engine is running"),
        slow("demo", {3}, ""),
    ],
)  # fmt: skip
def test_what_needs_no_engine_works(run, words: str, codes: set[int], says: str) -> None:  # type: ignore[no-untyped-def]
    done = run(*words.split())
    assert done.returncode in codes, done.stderr
    assert says in done.stdout


@pytest.mark.parametrize("words", ["serve", slow("serve -p cpu-tiny --port 0"), slow("demo")])
def test_what_needs_one_says_in_a_line_how_to_get_it(run, words: str) -> None:  # type: ignore[no-untyped-def]
    done = run(*words.split())
    assert done.returncode == 3
    error, hint = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert "is not installed" in error
    assert "pip install 'k3ctl[gpu,bench]'" in hint and "K3CTL_ENGINE_PYTHON" in hint


@pytest.mark.slow
def test_a_benchmark_without_a_client_says_in_a_line_how_to_get_it(run) -> None:  # type: ignore[no-untyped-def]
    done = run("bench", "smoke", "--url", DEAD, "--model", "m", "--tokenizer", "t")
    assert done.returncode == 3
    assert "pip install 'k3ctl[bench]'" in done.stderr
    dead = run("monitor", "--once", "--url", DEAD)
    assert dead.returncode == 4


def test_what_is_advised_there_needs_no_checkout(run) -> None:  # type: ignore[no-untyped-def]
    told = json.loads(run("next", "--json").stdout)["data"]
    assert not told["command"].startswith("make")
