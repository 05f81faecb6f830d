"""What the real vLLM survives, and what k3ctl says about it: one engine for all tests, unharmed after each.

Its state directory is a small file system of its own, so that a disk really fills up. The last test stops it there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from engine_helpers import NOTHING, ROOT, held, tiny, until
from real_engine import NONE, Census, load, need_engine, pss_kib, roles

from k3ctl import cli
from k3ctl.engine import launch, procs, rundir
from k3ctl.engine.stages import Stage
from k3ctl.errors import MachineError, UsageError
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
TIMING = {"stall_s": 6.0, "idle_s": 8.0, "canary_timeout_s": 8.0}
DISK_SIZE = "32m"


@dataclass
class Survivor:
    """The engine, and what the tests do to its surroundings."""

    engine: launch.RunningEngine
    census: Census
    disk: Path
    portal: Path
    stages: list[Stage] = field(default_factory=list)

    @property
    def run(self) -> rundir.Run:
        return self.engine.run

    def log(self) -> str:
        return self.run.engine_log.read_text(errors="replace")

    def findings(self, since: int) -> list[str]:
        return [finding["kind"] for finding in self.run.findings[since:]]

    @contextlib.contextmanager
    def no_space(self) -> Iterator[None]:
        """Nothing more can be written to the disk; writing really ends with ENOSPC."""
        ballast = self.disk / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file:
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(1 << 12))
                with pytest.raises(OSError, match="No space left"):
                    file.write(bytes(1 << 12))
            yield
        finally:
            ballast.unlink()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small file system")
    path = tmp_path_factory.mktemp("disk")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"cannot mount a file system: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture(scope="module")
def survivor(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survivor]:
    portal = tmp_path_factory.mktemp("portal") / "closed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("K3CTL_STATE_DIR", str(disk / "state"))
        patch.setenv("LOGIN_PAGE", str(portal))
        patch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{ROOT}")
        need_engine()
        census, stages = Census(disk / "state"), []
        assert census.counts() == NONE
        with launch.start(
            tiny(middleware="login_page.LoginPage"), port=0, timing=TIMING, on_stage=stages.append
        ) as engine:
            yield Survivor(engine, census, disk, portal, stages)
        assert census.counts() == NONE
        assert held() == NOTHING


@pytest.fixture
def unharmed(survivor: Survivor) -> Iterator[Survivor]:
    """The same processes answer before and after."""
    before = roles(survivor.run)
    yield survivor
    survivor.portal.unlink(missing_ok=True)
    os.kill(before["worker"], signal.SIGCONT)
    survivor.engine.client().canary("k3-tiny", 60)
    assert roles(survivor.run) == before
    assert survivor.run.state == "ready"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command printed on both streams; it ended with ``code`` and without a traceback."""
    returned = cli.main(list(words))
    out, err = capsys.readouterr()
    assert returned == code, out + err
    assert "Traceback" not in out + err
    return out + err


def test_a_start_is_told_stage_by_stage_and_fits_its_memory(unharmed):
    assert [stage.name for stage in unharmed.stages] == [
        *("import", "configure", "engine", "weights", "cache", "warm", "listen", "ready")
    ]
    counts = unharmed.census.counts()
    assert counts["processes"] >= 5 and counts["segments"] >= 1
    assert sum(pss_kib(pid) for pid in unharmed.census.processes()) < 2.5 * 1024 * 1024


def test_a_second_serve_on_its_port_is_refused_with_the_pid_that_holds_it(unharmed):
    run = unharmed.run
    with pytest.raises(MachineError, match=f"taken by run `{run.id}` .pid {run.engine_pid}") as caught:
        launch.launch(tiny(), port=run.port)
    assert f"k3ctl stop {run.id}" in caught.value.hint
    assert [found.id for found in rundir.all_runs()] == [run.id]


def test_a_profile_whose_model_directory_is_missing_starts_nothing(unharmed, tmp_path):
    before = unharmed.census.processes()
    text = Path(loader.files()["cpu-tiny"]).read_text()
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        text.replace("name: cpu-tiny", "name: mine").replace("generated: tiny", "id: /nowhere/kimi-k3")
    )
    with pytest.raises(UsageError, match="`/nowhere/kimi-k3` does not exist"):
        launch.launch(resolve(loader.load(str(profile))), port=0)
    assert unharmed.census.processes() == before
    assert [found.id for found in rundir.all_runs()] == [unharmed.run.id]


DAMAGE = {
    "torn": '{"schema": "k3.witness/1", "st',
    "not-text": "\x00\x01\x02",
    "other-types": '{"schema": "k3.witness/1", "rank": [], "steps": [{"path": 1}, null, 7]}',
    "empty": "",
}


def on_disk(run: rundir.Run) -> dict:
    """The worker's page; nothing while it is damaged."""
    try:
        return dict(json.loads((run.witness_dir / "rank0.json").read_text()))
    except ValueError:
        return {}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_witness_page_breaks_no_route_and_is_mended_without_a_step(damage, unharmed, capsys):
    """The worker is halted for a moment, so that the damage lasts; then the routes have only the page to read."""
    run, client, worker = unharmed.run, unharmed.engine.client(30), roles(unharmed.run)["worker"]
    client.canary("k3-tiny", 30)
    with rundir.quiet(run.dir):
        (whole,) = client.json("/k3/witness")["workers"]
        until(lambda: on_disk(run).get("steps") == whole["steps"])
        os.kill(worker, signal.SIGSTOP)
        (run.witness_dir / "rank0.json").write_text(DAMAGE[damage])
        metrics = client.text("/metrics")
        assert "vllm:num_requests_running" in metrics and "k3_steps_total" not in metrics
        assert client.json("/k3/witness")["workers"] == []
        os.kill(worker, signal.SIGCONT)
        until(lambda: on_disk(run).get("steps") == whole["steps"], 10)
        until(lambda: client.json("/k3/witness")["workers"], 10)
        assert "k3_steps_total" in client.text("/metrics")
        told = json.loads(said(capsys, "monitor", "--once", "--json", "--no-gpus", "--url", run.url))["data"]
        assert told["path"]["known"] is True and told["path"]["known_build"] is True


def test_verify_is_not_misled_by_a_witness_page_that_somebody_damages_all_the_time(unharmed, capsys):
    page, over = unharmed.run.witness_dir / "rank0.json", threading.Event()

    def damage() -> None:
        while not over.wait(0.05):
            page.write_text(DAMAGE["other-types"])

    vandal = threading.Thread(target=damage)
    vandal.start()
    try:
        assert ": proved — " in said(capsys, "verify", "--run", unharmed.run.id)
    finally:
        over.set()
        vandal.join()
    until(lambda: on_disk(unharmed.run).get("steps"))


def test_metrics_that_are_a_login_page_are_a_finding_and_a_clear_word_everywhere(unharmed, capsys):
    run, since = unharmed.run, len(unharmed.run.findings)
    unharmed.portal.write_text("/metrics")
    until(lambda: "no-metrics" in unharmed.findings(since), 30)
    assert "holds no vLLM metrics" in run_finding(unharmed, "no-metrics")["text"]
    assert "no-metrics: the load cannot be read" in said(capsys, "ps")
    monitor = said(capsys, "monitor", "--once", "--json", "--no-gpus", "--url", run.url, code=4)
    (server,) = json.loads(monitor)["data"]["servers"]
    assert server["failure"] == "HTML instead of metrics: is a proxy or another service answering?"
    with rundir.quiet(run.dir):
        verdict = said(capsys, "verify", "--run", run.id, code=1)
    assert ": consistent — " in verdict and "`/metrics` cannot be read: whether other requests ran" in verdict
    assert unharmed.findings(since).count("no-metrics") == 1, "told once"


def test_a_portal_in_front_of_everything_is_told_as_silence_and_verify_says_what_it_got(unharmed, capsys):
    run, since = unharmed.run, len(unharmed.run.findings)
    unharmed.portal.write_text("/")
    assert "did not answer JSON but `<!DOCTYPE html>" in said(capsys, "verify", "--url", run.url, code=4)
    until(lambda: "not-answering" in unharmed.findings(since), 60)
    assert unharmed.engine.client().healthy(), "the page answers 200 to everything"
    unharmed.portal.unlink()
    until(lambda: "answers" in unharmed.findings(since), 60)


def run_finding(survivor: Survivor, kind: str) -> dict:
    return next(dict(found) for found in reversed(survivor.run.findings) if found["kind"] == kind)


def test_a_worker_that_hangs_under_load_is_a_stall_with_stacks_and_its_end_is_told(unharmed):
    since, who = len(unharmed.run.findings), roles(unharmed.run)
    clients = load(unharmed.run.url, tokens=150)
    os.kill(who["worker"], signal.SIGSTOP)
    until(lambda: "stalled" in unharmed.findings(since), 60)
    assert unharmed.engine.client().healthy(), "/health proves nothing"
    finding = run_finding(unharmed, "stalled")
    assert "requests run and nothing got done for" in finding["text"]
    files = {Path(file).name: Path(file).read_text(errors="replace") for file in finding["files"]}
    assert "/v1/completions" in files["engine-tail.log"] or "Application startup" in files["engine-tail.log"]
    assert " T " in files[f"threads-{who['worker']}.txt"], "the kernel says that it is stopped"
    assert {f"threads-{who[role]}.txt" for role in ("engine", "core", "worker")} <= files.keys()
    if shutil.which("py-spy") or Path(launch.preflight.interpreter().path).with_name("py-spy").exists():
        for role in ("engine", "core", "worker"):
            assert "MainThread" in files[f"stacks-{who[role]}.txt"], files[f"stacks-{who[role]}.txt"]
    assert unharmed.run.state == "ready", "a stall is told, not punished"
    os.kill(who["worker"], signal.SIGCONT)
    until(lambda: "resumed" in unharmed.findings(since), 60)
    for thread in clients:
        thread.join(120)


def test_a_worker_that_hangs_while_nothing_runs_is_found_although_health_says_200(unharmed):
    since, who = len(unharmed.run.findings), roles(unharmed.run)
    os.kill(who["worker"], signal.SIGSTOP)
    until(lambda: {"not-answering", "stalled"} & set(unharmed.findings(since)), 60)
    assert unharmed.engine.client().healthy()
    os.kill(who["worker"], signal.SIGCONT)
    until(lambda: {"answers", "resumed"} & set(unharmed.findings(since)), 60)


def test_a_full_disk_costs_lines_of_log_and_the_log_says_how_many(unharmed, capsys):
    run, client = unharmed.run, unharmed.engine.client(30)
    with unharmed.no_space():
        size = run.engine_log.stat().st_size
        for _ in range(60):
            client.canary("k3-tiny", 30)
        assert run.engine_log.stat().st_size - size < 4096
        assert ": proved — " in said(capsys, "verify", "--run", run.id)
        assert run.id in said(capsys, "ps")
        with pytest.raises(MachineError, match=r"cannot write the run directory .* No space left"):
            launch.launch(tiny(), port=0)
        assert [found.id for found in rundir.all_runs()] == [run.id]
    client.canary("k3-tiny", 30)
    until(lambda: "bytes of log lost: no space left on the disk" in unharmed.log())
    until(lambda: on_disk(run))


def test_a_stop_on_a_full_disk_leaves_nothing(survivor):
    """The last one: the engine is gone afterwards."""
    run = survivor.run
    with survivor.no_space():
        survivor.engine.stop()
        assert survivor.census.counts() == NONE
        assert rundir.read(run.dir).state == "stopped"
    assert procs.port_is_free("127.0.0.1", run.port)
    assert held() == NOTHING
