"""Setting up: by uv, by pip where uv is not to be had, resumed, rebuilt, and with one clear line when it fails."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import environment  # noqa: E402
from environment import UV, Environment, SetupError, Step  # noqa: E402

# Stands for an environment's Python and, once pip has "installed" it, for its uv. It answers what set-up asks, writes
# down how it was called, and fails as ORDERS says: {"pip": message, "uv": message, "install uv": message}.
FAKE = """#!{python} -IS
import json, os, sys
from pathlib import Path
me, words = Path(sys.argv[0]), sys.argv[1:]
orders = json.loads((me.parent / "orders.json").read_text())
def fail(name):
    if name in orders:
        print(orders[name])
        sys.exit(1)
if me.name == "uv":
    if words == ["--version"]:
        print("uv", orders.get("version", "{uv}"))
        sys.exit()
elif words[:1] == ["-c"]:
    print("%d.%d" % sys.version_info[:2])
    sys.exit()
elif words[:4] == ["-m", "pip", "config", "list"]:
    print(orders.get("config", ""))
    sys.exit()
elif words[:3] != ["-m", "pip", "install"]:
    sys.exit()
with open(me.parent / "calls.jsonl", "a") as file:
    own = {{name: value for name, value in os.environ.items() if name.startswith(("UV_", "VLLM_"))}}
    file.write(json.dumps([me.name, words, own]) + "\\n")
if any(word.startswith("uv==") for word in words):
    fail("install uv")
    (me.parent / "uv").write_text(me.read_text())
    (me.parent / "uv").chmod(0o755)
    sys.exit()
fail("uv" if me.name == "uv" else "pip")
"""
Make = Callable[..., Environment]


@pytest.fixture(autouse=True)
def no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(
        installer: str = "uv", base: Path | None = None, name: str = "venv", **orders: str
    ) -> Environment:
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "python").write_text(FAKE.format(python=sys.executable, uv=UV))
        (folder / "python").chmod(0o755)
        (folder / "orders.json").write_text(
            json.dumps({key.replace("_", " "): o for key, o in orders.items()})
        )
        return Environment(tmp_path / name, installer, base)

    return made  # fmt: skip


def calls(env: Environment) -> list[tuple[str, list[str], dict[str, str]]]:
    file = env.path / "bin" / "calls.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    file.unlink(missing_ok=True)
    return [(name, words, own) for name, words, own in rows]


def installers(env: Environment) -> list[str]:
    """Who installed what, without the bringing of uv."""
    return [f"{name} {words[-1]}" for name, words, _ in calls(env) if not words[-1].startswith("uv==")]


def test_pip_brings_uv_once_and_uv_installs(make: Make) -> None:
    env = make()
    env.install("--no-deps", "a")
    env.install("b", env={"VLLM_TARGET_DEVICE": "empty"})
    (_, brought, _), (_, first, _), (_, _, own) = rows = calls(env)
    assert [name for name, _, _ in rows] == ["python", "uv", "uv"]
    assert brought[-1] == f"uv=={UV}"
    assert first[:2] == ["pip", "install"] and str(env.python) in first
    assert own["VLLM_TARGET_DEVICE"] == "empty"


def test_pips_settings_and_the_index_of_torch_reach_uv_and_no_password_the_log(make: Make) -> None:
    env = make(config="global.extra-index-url='https://me:s3cret@a/'\n:env:.constraint='/c.txt'")
    env.install("torch", index="https://u:hidden@torch/")
    _, (_, words, own) = calls(env)
    assert own["UV_EXTRA_INDEX_URL"] == "https://me:s3cret@a/ https://u:hidden@torch/"
    assert own["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert words[words.index("--constraints") + 1] == "/c.txt"
    env = make("pip", name="other")
    env.install("torch", index="https://u:hidden@torch/")
    assert calls(env)[0][1][-2:] == ["--extra-index-url", "https://u:hidden@torch/"]
    for name in ("venv", "other"):
        log = (env.path.parent / name / "setup.log").read_text()
        assert "s3cret" not in log and "hidden" not in log


@pytest.mark.parametrize(
    ("orders", "says"),
    [
        ({"install_uv": "ERROR: No matching distribution found for uv"}, "No matching distribution found for uv"),
        ({"uv": "error: invalid peer certificate: UnknownIssuer"}, "uv failed (error: invalid peer certificate"),
        ({"config": "global.only-binary='numpy'"}, "uv has no word for its only-binary"),
    ],
)  # fmt: skip
def test_pip_goes_on_where_uv_cannot_and_says_why(
    make: Make, capsys: pytest.CaptureFixture[str], orders: dict[str, str], says: str
) -> None:
    env = make(**orders)
    env.install("a")
    env.install("b")
    assert installers(env)[-2:] == ["python a", "python b"]
    assert says in capsys.readouterr().out


def test_uv_is_not_even_asked_for_when_pip_is_wanted(make: Make) -> None:
    env = make("pip")
    env.install("a")
    assert installers(env) == ["python a"]


def test_a_uv_of_another_version_is_replaced_and_one_below_serves(make: Make, tmp_path: Path) -> None:
    base = make()
    base.install("a")
    calls(base)
    over = make(name="over", base=base.path)
    over.install("b")
    assert installers(over) == [] and installers(base) == ["uv b"]
    (base.path / "bin" / "orders.json").write_text(json.dumps({"version": "0.1.0"}))
    over = make(name="third", base=base.path)
    over.install("c")
    assert [words[-1] for _, words, _ in calls(over)] == [f"uv=={UV}", "c"]


def test_a_full_disk_is_said_at_once_and_pip_does_not_try_again(make: Make) -> None:
    env = make(uv="error: failed to write: No space left on device (os error 28)")
    with pytest.raises(SetupError, match="free some disk space"):
        env.install("a")
    assert installers(env) == ["uv a"]


def test_what_uv_left_half_done_is_installed_once_more_by_pip(make: Make) -> None:
    env = make(uv="killed")
    env.install("a")
    assert "--force-reinstall" in calls(env)[-1][1]


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Failed to establish a new connection: [Errno 113] No route to host')': /simple/x/", "check the network"),
        ("Temporary failure in name resolution", "check the network"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] failed", "`cert` setting"),
        ("ProxyError('Cannot connect to proxy.', OSError('Tunnel failed'))", "HTTPS_PROXY"),
        ("OSError: [Errno 28] No space left on device", "free some disk space"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("error: command 'gcc' failed: No such file or directory", "build-essential"),
        ("ERROR: No matching distribution found for torch==2.13.0", "pip's index settings"),
    ],
)  # fmt: skip
def test_a_failure_is_its_cause_and_a_hint(make: Make, said: str, hint: str) -> None:
    env = make("pip", pip=f"Collecting x\nWARNING: error-prone noise\n{said}\nNote: this is from a package")
    with pytest.raises(SetupError) as failure:
        env.install("x")
    lines = str(failure.value).splitlines()
    assert len(lines) == 3
    assert hint in lines[2]
    assert lines[1].strip()[:30] in said


def steps(*names: str, ran: list[str], stop: str = "", env: Environment) -> list[Step]:
    def step(name: str) -> Callable[[], None]:
        def run() -> None:
            ran.append(name)
            env.install(name)
            if name == stop:
                raise KeyboardInterrupt

        return run

    return [Step(name, f"inputs of {name}", step(name)) for name in names]


def test_an_interrupted_set_up_goes_on_with_the_step_it_stopped_in_and_unpacks_that_once_more(
    make: Make,
) -> None:
    env, ran = make(), list[str]()
    with pytest.raises(KeyboardInterrupt):
        env.run(steps("one", "two", "three", ran=ran, stop="two", env=env))
    assert ran == ["one", "two"]
    calls(env)
    env, ran = make(), []
    env.run(steps("one", "two", "three", ran=ran, env=env))
    assert ran == ["two", "three"]
    assert ["--reinstall" in words for name, words, _ in calls(env) if name == "uv"] == [True, False]
    env.run(steps("one", "two", "three", ran=[], env=env))
    assert calls(env) == []


def test_what_stands_on_a_redone_step_is_redone_also_after_an_interruption(make: Make) -> None:
    env = make()
    env.run(steps("one", "two", "three", ran=[], env=env))
    changed = steps("one", "two", "three", ran=[], stop="one", env=env)
    changed[0] = Step("one", "other inputs", changed[0].run)
    with pytest.raises(KeyboardInterrupt):
        env.run(changed)
    ran: list[str] = []
    again = steps("one", "two", "three", ran=ran, env=env)
    env.run([Step("one", "other inputs", again[0].run), *again[1:]])
    assert ran == ["one", "two", "three"]


def test_damaged_stamps_mean_that_everything_is_done_again(make: Make) -> None:
    env = make()
    env.stamp_file.parent.mkdir(exist_ok=True)
    env.stamp_file.write_text('{"one": ')
    ran: list[str] = []
    env.run(steps("one", ran=ran, env=env))
    assert ran == ["one"]


def setup(*words: str, python: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, SCRIPTS / "setup_env.py", *words],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_an_old_python_can_read_the_script_far_enough_to_be_refused() -> None:
    tree = ast.parse((SCRIPTS / "setup_env.py").read_text(), feature_version=(3, 7))
    first = [node for node in tree.body if not isinstance(node, ast.Expr)][:2]
    assert isinstance(first[0], ast.Import) and isinstance(first[1], ast.If)
    assert "version_info" in ast.unparse(first[1].test)
    old = [p for n in range(6, 11) if (p := shutil.which(f"python3.{n}"))]
    for python in old:
        done = setup("cpu", python=python)
        if "is too old" in done.stderr:  # a stand-in for a Python that is not there says something else
            assert done.returncode == 3
            assert "hint: k3ctl needs Python 3.11" in done.stderr
            assert "Traceback" not in done.stderr


def test_a_python_without_the_venv_module_gets_the_package_to_install(tmp_path: Path) -> None:
    (tmp_path / "venv.py").write_text("import sys; sys.exit('/usr/bin/python3: No module named venv')")
    done = setup("cpu", "--venv", str(tmp_path / "v"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    assert "python3-venv" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "v").exists()


def test_a_place_that_cannot_be_written_is_one_line(make: Make, tmp_path: Path) -> None:
    env = make()
    (env.path / "setup.log").symlink_to("/dev/full")
    done = setup("cpu", "--venv", str(env.path))
    assert done.returncode == 3
    assert "No space left on device" in done.stderr and "free some disk space" in done.stderr
    assert "Traceback" not in done.stderr
    missing = setup("cpu", "--venv", str(tmp_path / "no" / "such" / "place"))
    assert missing.returncode == 3
    assert "error: " in missing.stderr and "Traceback" not in missing.stderr


@pytest.mark.parametrize("damage", ["dangling", "no pip", "of another Python"])
def test_a_broken_environment_is_made_anew(
    make: Make, damage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = make()
    made: list[object] = []
    real = environment.attempt

    def attempt(command: list[object]) -> subprocess.CompletedProcess[str]:
        if "venv" in command:
            made.append(command[-1])
            return subprocess.CompletedProcess(command, 0, "", "")  # type: ignore[arg-type]
        return real(command)  # type: ignore[arg-type]

    monkeypatch.setattr(environment, "attempt", attempt)
    env.create()
    assert not made, "it was whole"
    env.python.unlink()
    if damage == "dangling":
        env.python.symlink_to("/no/such/python")
    else:
        says = "echo 3.1" if damage == "of another Python" else "exit 1"
        env.python.write_text(f"#!/bin/sh\n{says}\n")
        env.python.chmod(0o755)
    env.create()
    assert made == [env.path]
    assert "made anew" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["a file", "a directory"])
def test_what_is_no_environment_is_never_removed(tmp_path: Path, what: str) -> None:
    place = tmp_path / "home"
    precious = place
    if what == "a directory":
        place.mkdir()
        precious = place / "thesis.tex"
    precious.write_text("years of work")
    done = setup("cpu", "--venv", str(place))
    assert done.returncode == 3
    assert "is no virtual environment" in done.stderr and "hint: " in done.stderr
    assert precious.read_text() == "years of work"


def test_bytecode_is_made_beside_a_block_and_ends_with_it(tmp_path: Path) -> None:
    """The real compiler, in an environment of one package: finished with the block, gone when the block fails."""
    path = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    env = Environment(path)
    source = env.packages / "k3probe.py"
    source.write_text("X = 1\n")
    (env.packages / "anthropic").mkdir()
    (env.packages / "anthropic" / "rare.py").write_text("Y = 1\n")
    with env.compiling():
        pass
    assert [made.name.partition(".")[0] for made in env.packages.rglob("*.pyc")] == ["k3probe"]
    env.python.unlink()
    env.python.write_text("#!/bin/sh\necho $$ > " + str(tmp_path / "pid") + "\nexec sleep 60\n")
    env.python.chmod(0o755)
    with pytest.raises(SetupError), env.compiling():
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            pass
        raise SetupError("no network")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
