"""What a run keeps of its start, and the deployment that is described from it alone."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
from engine_helpers import recorded, tiny
from launched import GPUS, own_profile, run_of

from k3ctl import deployment
from k3ctl.engine import command, launch, record, rundir
from k3ctl.gpus.types import Gpu, Node
from k3ctl.gpus.visible import visible
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve


def test_a_launch_keeps_arguments_environment_origins_profile_and_versions(fake_python, leftovers):
    with launch.launch(tiny(max_num_seqs="3"), port=0, seen={"gpus": [], "driver": "580.1"}) as engine:
        kept = rundir.read(engine.run_dir).launch
    assert kept["args"]["max_num_seqs"] == 3 and kept["args"]["port"] == engine.run.port
    assert kept["args"]["worker_extension_cls"] == command.WITNESS
    assert kept["origins"]["max_num_seqs"] == ["flag", "--set max_num_seqs"]
    assert kept["origins"]["port"] == ["flag", "--port"]
    assert kept["origins"]["host"] == ["default", "k3ctl"]
    assert kept["origins"]["worker_extension_cls"] == ["default", "k3ctl serve"]
    assert kept["origins"]["additional_config.decode_backend"][0] == "profile"
    assert kept["env"]["K3_WITNESS_DIR"] == str(engine.run.witness_dir)
    assert kept["origins"]["env.K3_WITNESS_DIR"] == ["default", "k3ctl serve"]
    assert kept["model"] == str(engine.run_dir / "model")
    assert kept["versions"] == kept["versions"] | {"vllm": "0.33.0", "torch": "2.13.0", "driver": "580.1"}
    shipped = loader.files()["cpu-tiny"].read_text()
    (text,) = kept["profile"]["texts"]
    assert text == {
        "name": "cpu-tiny.yaml",
        "sha256": hashlib.sha256(shipped.encode()).hexdigest(),
        "text": shipped,
    }


def test_every_argument_and_variable_has_an_origin(state_dir):
    for name in loader.names():
        resolved = resolve(loader.load(name))
        kept = run_of(resolved.with_model_path("/m")).launch
        known = {key.split(".")[0] for key in kept["origins"] if not key.startswith("env.")}
        assert known == set(kept["args"])
        assert {key.removeprefix("env.") for key in kept["origins"] if key.startswith("env.")} == set(
            kept["env"]
        )


def test_the_configuration_that_ran_comes_back(state_dir):
    for name in loader.names():
        resolved = resolve(loader.load(name)).with_model_path("/m")
        back = record.config(run_of(resolved))
        assert back is not None and back.profile.file == resolved.profile.file
        assert back.profile.model_dump() == resolved.profile.model_dump() and back.model == "/m"
        assert {key: back.args[key] for key in resolved.args} == {
            **resolved.args,
            **{key: back.args[key] for key in ("host", "port")},
        }


@pytest.mark.parametrize("change", [{"status": "verified"}, {"status": "supported", "evidence": []}])
def test_how_far_an_older_k3ctl_trusted_a_profile_is_no_reason_not_to_know_it(state_dir, change):
    resolved = resolve(loader.load("cpu-tiny")).with_model_path("/m")
    run = run_of(resolved)
    run.launch["profile"]["data"].update(change)
    back = record.config(run)
    assert back is not None and (back.profile.name, back.profile.status) == ("cpu-tiny", "untested")


def test_the_deployment_is_what_was_started_although_the_profiles_file_changed_since(state_dir, tmp_path):
    path = own_profile(tmp_path)
    resolved = resolve(loader.load(str(path)), {"speculative_config.num_speculative_tokens": "3"})
    run = run_of(resolved.with_model_path("/m"))
    before = path.read_text()
    own_profile(tmp_path, decode={"speculator": {"method": "ngram", "num_speculative_tokens": 9}})
    found = deployment.of_run(run)
    assert (found.profile, found.num_speculative_tokens, found.speculator) == ("mine", 3, "mtp")
    assert record.profile_texts(run) == {
        "mine.yaml": before,
        "cpu-tiny.yaml": loader.files()["cpu-tiny"].read_text(),
    }
    path.unlink()
    assert deployment.of_run(run) == found


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, {"acceptance": "real", "num_speculative_tokens": 7, "speculator": "dspark", "requested": True}),
        (
            {"speculative_config": "none"},
            {"acceptance": "none", "num_speculative_tokens": 0, "speculator": ""},
        ),
        (
            {
                "speculative_config.rejection_sample_method": "synthetic",
                "speculative_config.synthetic_acceptance_length": "6.0",
            },
            {"acceptance": "synthetic", "synthetic_acceptance_length": 6.0},
        ),
        ({"additional_config.decode_backend": "auto"}, {"decode_backend": "auto", "requested": False}),
        ({"enable_prefix_caching": "false"}, {"prefix_caching": False}),
        ({"stream_interval": "10"}, {"stream_interval": 10}),
        ({"profiler_config.torch_profiler_dir": "/t"}, {"traces": "/t"}),
        ({"tensor_parallel_size": "8"}, {"tensor_parallel_size": 8, "gpus": 8}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_what_was_set_at_the_start_is_what_is_deployed(state_dir, overrides, expected):
    run = run_of(resolve(loader.load("gb300-tp16"), overrides), GPUS)
    found = deployment.of_run(run)
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.gpu, found.vllm) == ("GB300", "0.33.0")


def test_unknowns_stay_unknown(state_dir):
    assert deployment.of_run(None) == deployment.UNKNOWN == deployment.of_run(recorded())
    assert deployment.UNKNOWN.requested is None and deployment.UNKNOWN.product is None
    resolved = resolve(loader.load("gb300-tp16"))
    strange = [{**gpu, "name": "NVIDIA Z900"} for gpu in GPUS]
    for gpus in (None, [], strange, [*GPUS, strange[0]]):
        found = deployment.of_run(run_of(resolved, gpus))
        assert found.gpu is None and found.product is None and found.tensor_parallel_size == 16
    filled = deployment.of_run(run_of(resolved)).known_from({"gpu": "B200", "gpus": 3, "vllm": None})
    assert (filled.gpu, filled.gpus, filled.vllm) == ("B200", 16, "0.33.0")


def test_a_cpu_engine_has_no_gpu_although_the_host_has_some(state_dir):
    assert deployment.of_run(run_of(tiny().with_model_path("/m"), GPUS)).gpu == deployment.CPU


@pytest.mark.parametrize("damage", [{}, {"profile": None}, {"args": 3}, {"origins": []}])
def test_a_damaged_record_is_an_unknown_deployment(state_dir, damage):
    run = run_of(tiny().with_model_path("/m"))
    broken = dataclasses.replace(run, launch={**run.launch, **damage} if damage else {})
    assert deployment.of_run(broken) == deployment.UNKNOWN
    assert isinstance(record.profile_texts(broken), dict)


def test_secrets_are_in_no_part_of_the_record(state_dir, tmp_path):
    path = own_profile(
        tmp_path, serve={"args": {"api_key": ["k-111111"]}, "env": {"HF_TOKEN": "h-222222", "K3_X": "seen"}}
    )
    run = run_of(resolve(loader.load(str(path))).with_model_path("/m"))
    text = (run.dir / "run.json").read_text()
    assert "k-111111" not in text and "h-222222" not in text and "seen" in text
    assert run.launch["profile"]["texts"][0]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "max_num_batched_tokens" in text and "tokenizer" in json.dumps(run.launch["profile"]["data"])


def test_the_gpus_that_an_engine_sees():
    node = Node("n", gpus=tuple(Gpu(i, name="NVIDIA GB300", uuid=f"GPU-{i}{i}") for i in range(4)))

    def seen(devices: str | None) -> list[int] | None:
        found = visible(node, devices)
        return None if found is None else [gpu.index for gpu in found]

    assert seen(None) == [0, 1, 2, 3]
    assert seen("2,0") == [2, 0]
    assert seen("GPU-11, 3") == [1, 3]
    assert seen("") == []
    assert seen("1,9,2") == [1]
    assert seen("MIG-1") is None
