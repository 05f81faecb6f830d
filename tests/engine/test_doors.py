"""What a run record names is believed only as far as k3ctl could have written it, and nobody else can read it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from engine_helpers import NOTHING, recorded, tiny

from k3ctl import files
from k3ctl.commands import runs as runs_command
from k3ctl.engine import launch, procs, prune, rundir, territory
from k3ctl.errors import K3Error, MachineError, UsageError

NOBODY = 2**22
"""Beyond pid_max: no session of this number."""


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    kept = tmp_path / "precious"
    kept.mkdir(mode=0o700)
    (kept / "thesis").write_text("years of work")
    return kept / "thesis"


def forge(directory: Path, **changes: object) -> rundir.Run:
    """A run record that somebody wrote by hand."""
    values = {
        "schema": rundir.SCHEMA, "id": "x", "profile": "p", "host": "h", "port": 1, "url": "http://h:1",
        "served_model_name": "m", "tokenizer": "t", "argv": [], "env": {}, "started_at": 1.0,
    } | changes  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_text(json.dumps(values))
    return rundir.read(directory)


@pytest.mark.parametrize("session", [0, NOBODY], ids=["never taken over", "reaper killed"])
@pytest.mark.parametrize(
    "place", ["k3-abcd1234", "k3-abcd1234/.", "x/../k3-abcd1234", "k3-longer-name", "other"]
)
def test_stop_removes_no_directory_outside_the_temporary_ones(
    session: int, place: str, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(territory, "SHM", tmp_path / "shm")
    victim = tmp_path / "home" / place
    (tmp_path / "home" / "x").mkdir(parents=True)
    victim.mkdir(exist_ok=True)
    (victim / "thesis").write_text("years of work")
    victim.chmod(0o700)
    run = forge(tmp_path / "run", scratch=[str(victim)], session=session, boot_id=procs.boot_id())
    assert launch.stop(run).state == "failed"
    assert (victim / "thesis").exists()


def test_scratch_goes_only_when_it_is_this_users_own_real_directory(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path(tempfile.mkdtemp(prefix="k3-"))
    link = real.with_name("k3-linklink")
    link.symlink_to(precious.parent)
    open_to_all = Path(tempfile.mkdtemp(prefix="k3-"))
    open_to_all.chmod(0o755)
    try:
        for name in (
            str(link),
            f"{link}/",
            f"{real}/../{real.name}",
            real.name,
            "",
            "/",
            "\0",
            str(open_to_all),
        ):
            assert not territory.remove_scratch(name), name
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert not territory.remove_scratch(str(real)), "somebody else's"
        monkeypatch.undo()
        assert territory.remove_scratch(str(real))
        assert not real.exists()
        assert precious.exists()
    finally:
        link.unlink()
        open_to_all.rmdir()


def test_no_shared_memory_name_leads_out_of_dev_shm(tmp_path: Path, precious: Path) -> None:
    shm, record = tmp_path / "shm", tmp_path / "segments"
    shm.mkdir()
    (shm / "psm_mine").write_text("x")
    (shm / "psm_link").symlink_to(precious)
    (shm / "deep").mkdir()
    (shm / "deep" / "file").write_text("x")
    names = [
        str(precious),
        f"../{precious.parent.name}/thesis",
        "psm_link",
        "deep",
        "deep/file",
        "..",
        ".",
        "",
    ]
    names += ["psm_mine", "a\0b"]
    record.write_text("\n".join(names) + "\n")
    kept = territory.Territory(NOBODY, record, shm=shm)
    assert kept.segments() == {"psm_mine"}
    kept.clear()
    assert precious.exists()
    assert (shm / "deep" / "file").exists()
    assert (shm / "psm_link").is_symlink()
    assert not (shm / "psm_mine").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("given", ["directory", "record"])
def test_nothing_that_another_user_wrote_is_acted_upon(given: str, tmp_path: Path, state_dir: Path) -> None:
    run = forge(
        tmp_path / "run", state="stopped", pid=os.getppid(), pid_started=procs.started_at(os.getppid())
    )
    os.chown(run.dir if given == "directory" else run.dir / "run.json", 12345, 12345)
    for act in (launch.stop, prune.remove):
        with pytest.raises(UsageError, match="another user"):
            act(run)


def test_a_record_reached_through_a_link_is_not_acted_upon(tmp_path: Path, state_dir: Path) -> None:
    real = forge(tmp_path / "elsewhere", state="stopped")
    (tmp_path / "link").symlink_to(real.dir)
    with pytest.raises(UsageError, match="is a link"):
        launch.stop(rundir.read(tmp_path / "link"))


def test_prune_removes_run_directories_of_this_state_only(tmp_path: Path, state_dir: Path) -> None:
    foreign = forge(tmp_path / "documents", state="stopped")
    with pytest.raises(UsageError, match="no run directory"):
        prune.remove(foreign)
    mine = recorded(state="stopped")
    (rundir.runs_root() / "linked").symlink_to(foreign.dir)
    with pytest.raises(UsageError, match="link"):
        prune.remove(rundir.read(rundir.runs_root() / "linked"))
    assert foreign.dir.exists()
    prune.remove(mine)
    assert not mine.dir.exists()


def test_the_supervisor_is_killed_by_number_only_while_it_belongs_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(procs, "send", lambda pid, _: killed.append(pid))
    # a session of its own: the tests' may have begun outside this process namespace, where its number reads 0
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        try:
            stranger = child.pid + 1
            launch._kill_supervisor(supervised(child.pid, session=stranger))
            launch._kill_supervisor(supervised(child.pid, session=0))
            launch._kill_supervisor(supervised(1, session=1))
            assert killed == []
            launch._kill_supervisor(supervised(child.pid, session=child.pid))
            assert killed == [child.pid]
        finally:
            child.kill()


def supervised(pid: int, *, session: int) -> rundir.Run:
    """A run whose record names ``pid`` as its supervisor."""
    return rundir.Run("x", "p", "h", 1, "u", "m", "t", (), {}, 1.0, supervisor_pid=pid, session=session)


def test_a_run_is_its_users_alone(fake_python, leftovers, state_dir: Path) -> None:
    before = os.umask(0o022)
    try:
        with launch.start(tiny(), port=0) as engine, rundir.quiet(engine.run_dir):
            modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in rundir.state_root().rglob("*")}
            masked = Path(f"/proc/{engine.run.engine_pid}/status").read_text().partition("Umask:\t")[2][:4]
    finally:
        os.umask(before)
    wrong = {path: oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)}
    assert wrong == {}
    assert masked == "0022", "the engine's own files are made as its user asked"
    assert leftovers() == NOTHING


def test_a_state_directory_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K3CTL_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state" / "runs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MachineError, match="link"):
        recorded()
    (tmp_path / "state" / "runs").unlink()
    (tmp_path / "state" / "runs").mkdir(mode=0o777)
    recorded()
    assert stat.S_IMODE((tmp_path / "state" / "runs").stat().st_mode) == 0o700


BAD = {
    "no JSON": b"{", "no object": b"[]", "other": b'{"schema": "x"}', "empty": b"", "no UTF-8": b"\xff",
    "deep": b"[" * 100_000, "infinite": b'{"schema": "k3ctl.run/1", "started_at": Infinity}',
    "huge number": b"9" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_one_bad_record_does_not_break_ps_and_is_named(data: bytes, state_dir: Path) -> None:
    good = recorded(state="stopped")
    bad = rundir.runs_root() / "20990101-000000-bad"
    bad.mkdir()
    (bad / "run.json").write_bytes(data)
    result = runs_command.ps(every=True)
    assert [run["id"] for run in result.data["runs"]] == [good.id]
    assert [str(bad) in warning for warning in result.warnings] == [True]


@pytest.mark.parametrize("name", ["run.json is a pipe", "run.json is a directory", "run.json is too long"])
def test_a_record_that_is_no_file_is_refused_not_waited_for(name: str, state_dir: Path) -> None:
    bad = recorded().dir / "run.json"
    bad.unlink()
    if name.endswith("pipe"):
        os.mkfifo(bad)
    elif name.endswith("directory"):
        bad.mkdir()
    else:
        with bad.open("wb") as file:
            file.truncate(rundir.MAX_BYTES + 1)
    with pytest.raises(UsageError, match="cannot be read"):
        rundir.read(bad.parent)
    assert rundir.all_runs() == []


@pytest.mark.parametrize("field", [f for f in rundir.Run.__dataclass_fields__ if f not in ("dir", "schema")])
@pytest.mark.parametrize("value", [None, True, 1e300, "x", [[1]], {"a": {"b": [1]}}, -1, 10**30], ids=repr)
def test_a_field_of_another_type_is_named_and_nothing_traces_back(
    field: str, value: object, tmp_path: Path, state_dir: Path
) -> None:
    path = rundir.runs_root() / "x"
    try:
        forge(path, **{field: value})
    except UsageError as error:
        assert f"`{field}`" in error.message
    try:
        runs_command.ps(every=True)
        rundir.latest_live()
        rundir.find("x")
    except K3Error:
        pass


def test_private_files_are_never_written_through_a_link(tmp_path: Path, precious: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(precious)
    for write in (lambda: files.append(link), lambda: files.replace(link, b"x")):
        with pytest.raises(OSError):
            write()
    assert precious.read_text() == "years of work"
