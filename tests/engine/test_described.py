"""Monitor, bench, verify and evidence speak of what was started, whatever became of the profile since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_helpers import recorded
from launched import GPUS, own_profile, run_of

from k3ctl import cli
from k3ctl.bundle import verify as bundles
from k3ctl.bundle.parts import Surroundings
from k3ctl.bundle.write import write
from k3ctl.commands.bench import parts
from k3ctl.deployment import UNKNOWN, Deployment
from k3ctl.engine import launch, rundir
from k3ctl.engine.rundir import Run
from k3ctl.errors import UsageError
from k3ctl.feeds import watch
from k3ctl.loadtest import target
from k3ctl.profiles import loader
from k3ctl.profiles.overrides import parse_set
from k3ctl.profiles.resolve import resolve
from k3ctl.telemetry.reducer import State
from k3ctl.telemetry.view import build
from k3ctl.verdict import check, profiler
from tests.loadtest import results

GB300 = {"extends": "gb300-tp16"}


@pytest.fixture
def changed_since(state_dir: Path, tmp_path: Path) -> Run:
    """Started from a file by path with --set; the file now says something else."""
    path = own_profile(tmp_path, **GB300)
    words = ["speculative_config=none", "stream_interval=5", "additional_config.decode_backend=auto"]
    run = run_of(resolve(loader.load(str(path)), parse_set(words)), GPUS)
    own_profile(tmp_path, summary="somebody edited it", decode={"max_num_seqs": 2}, **GB300)
    return run


def test_monitor_compares_with_the_run_not_with_the_file(changed_since: Run) -> None:
    found = watch.deployment(None, [changed_since])
    assert (found.profile, found.gpu, found.num_speculative_tokens) == ("mine", "GB300", 0)
    view = build(State(), 0.0, found)
    assert view.path.anchor is not None and view.path.anchor.draft_tokens == 0
    drafting = build(State(), 0.0, watch.described("gb300-tp16"))
    assert drafting.path.anchor is not None and drafting.path.anchor.draft_tokens == 7


def test_monitor_does_not_take_a_run_without_a_record_for_its_profile(state_dir: Path) -> None:
    old = recorded()
    assert watch.deployment(None, [old]) == UNKNOWN
    assert watch.deployment(None, []) == UNKNOWN
    assert watch.deployment("gb300-tp8", [old]).profile == "gb300-tp8"


def test_plan_speaks_of_the_run_and_reads_its_log(
    changed_since: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    changed_since.engine_log.write_text("INFO Model loading took 100.0 GiB memory and 9.1 seconds\n")
    assert cli.main(["plan", "--run", changed_since.id, "--hardware", "GB300:16", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["profile"], data["verdict"], data["vllm"]) == ("mine", "standard", "0.33.0")
    assert data["budget"]["rows_per_decode_step"] == data["budget"]["max_num_seqs"]
    assert data["actual"][0]["actual"] == 100.0
    assert cli.main(["plan", "gb300-tp16", "--run", changed_since.id]) == 2
    assert cli.main(["plan", "--run", recorded().id]) == 2
    assert "keeps no record of its start" in capsys.readouterr().err


def test_bench_loads_what_was_started(changed_since: Run) -> None:
    to = target.from_run(changed_since)
    assert to.deployment == watch.deployment(None, [changed_since])
    assert (to.deployment.acceptance, to.deployment.decode_backend) == ("none", "auto")
    assert target.Target.from_dict(json.loads(json.dumps(to.as_dict()))) == to


def test_verify_asks_for_what_was_requested(changed_since: Run) -> None:
    assert (
        check.target(changed_since.url, None).deployment.requested is None
    )  # it is not live: nobody of ours is behind it
    specialized = run_of(resolve(loader.load("gb300-tp16")), GPUS)
    assert check.deployment.of_run(changed_since).requested is False
    assert check.deployment.of_run(specialized).requested is True
    assert check.deployment.of_run(recorded()).requested is None
    with pytest.raises(UsageError, match="without a profiler"):
        profiler.directory(check.deployment.of_run(changed_since))


def test_evidence_holds_the_profile_that_ran(changed_since: Run, tmp_path: Path) -> None:
    directory = results.make(tmp_path / "20261130-101500-8k1k", "guidellm-8k1k-blogshape-c1-c4-c16.json",
                             target=target.from_run(changed_since), concurrency=(1, 4, 16))  # fmt: skip
    ran = (tmp_path / "mine.yaml").read_text()
    manifest = write(directory, Surroundings(changed_since), environment={})
    kept = (directory / "profile.yaml").read_text()
    assert kept != ran and "a profile of my own" in kept and "somebody edited it" not in kept
    assert (directory / "profile.base.yaml").read_text() == loader.files()["gb300-tp16"].read_text()
    assert "stream_interval" in manifest["validity"]["flags"]
    assert manifest["deployment"]["gpu"] == "GB300"
    assert bundles.passed(bundles.verify(directory))


def test_evidence_of_a_server_that_k3ctl_did_not_start_holds_no_profile(tmp_path: Path) -> None:
    directory = results.make(tmp_path / "20261130-101500-8k1k", "guidellm-8k1k-blogshape-c1-c4-c16.json",
                             target=target.Target("http://s:1", "m", "t"), concurrency=(1, 4, 16))  # fmt: skip
    manifest = write(directory, Surroundings(), environment={})
    assert not list(directory.glob("profile*")) and not (directory / "engine.json").exists()
    assert {value for name, value in manifest["deployment"].items()} == {None}
    assert set(manifest["deployment"]) == set(Deployment.__dataclass_fields__) - {
        *("speculator", "stream_interval", "traces")
    }


def test_the_server_that_serve_started_is_described_end_to_end(
    fake_python: Path, leftovers: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own_profile(tmp_path)
    resolved = resolve(loader.load(str(path)), parse_set(["speculative_config.num_speculative_tokens=3"]))
    with launch.start(resolved, port=0) as engine:
        path.unlink()
        found, to = parts.target(engine.id, None, None, None)
        assert found is not None and found.id == engine.id
        assert (to.deployment.num_speculative_tokens, to.deployment.gpu) == (3, "none (CPU)")
        assert watch.deployment(None, watch.runs([], None)) == to.deployment
        assert check.target(engine.url, None).deployment.requested is True
        assert cli.main(["monitor", "--once", "--no-gpus", "--interval", "0.2", "--run", engine.id]) == 0
    assert capsys.readouterr().out
    assert rundir.read(engine.run_dir).state == "stopped"
