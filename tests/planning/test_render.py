"""Rendered files are byte-equal to the checked-in ones, and valid for what reads them.

``K3CTL_UPDATE_GOLDEN=1`` writes the expected files anew.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from k3ctl.errors import UsageError
from k3ctl.planning.render import FORMATS, Site, render, write
from k3ctl.planning.render.base import ready_timeout_s
from k3ctl.profiles.arguments import lookup
from k3ctl.profiles.loader import names
from k3ctl.profiles.vllm_args import argv

from .building import config

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = Path(__file__).parent.parent / "fixtures" / "schemas"
KUBERNETES = "1.34"


def resolved(name):
    found = config(name)
    return found.with_model_path("/models/k3-tiny") if found.needs_generated_model else found


def manifests(name):
    text = next(iter(render(resolved(name), "kubernetes").values()))
    return [document for document in yaml.safe_load_all(text) if document]


def find(documents, kind):
    return next((document for document in documents if document["kind"] == kind), None)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("format_name", FORMATS)
def test_files_are_byte_equal_to_the_golden_ones(name, format_name):
    files = render(resolved(name), format_name)
    folder = GOLDEN / format_name
    if os.environ.get("K3CTL_UPDATE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    for file, text in files.items():
        assert (folder / file).read_text() == text


def test_no_golden_file_is_left_over():
    rendered = {GOLDEN / f / file for name in names() for f in FORMATS for file in render(resolved(name), f)}
    assert {path for path in GOLDEN.rglob("*") if path.is_file()} == rendered


@pytest.mark.parametrize("name", names())
def test_scripts_parse(name, tmp_path):
    for format_name in ("command", "nodes", "ray", "slurm"):
        for file, text in render(resolved(name), format_name).items():
            if file.endswith((".sh", ".sbatch")):
                path = tmp_path / file
                path.write_text(text)
                subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("name", names())
def test_a_script_runs_the_very_argv(name, tmp_path):
    """With a ``vllm`` that only tells its words, the script gives our argv, quoting included."""
    fake = tmp_path / "vllm"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@"\n')
    fake.chmod(0o755)
    file, text = next(iter(render(resolved(name), "command").items()))
    script = tmp_path / file
    script.write_text(text)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MASTER_ADDR": "192.0.2.1"}
    said = subprocess.run(["bash", str(script)], capture_output=True, text=True, env=env, check=True).stdout
    words = said.split("\0")[:-1]
    expected = ["serve", *argv(resolved(name))]
    assert words[: len(expected)] == expected
    assert set(words[len(expected) :]) <= {
        "--node-rank",
        "0",
        "--master-port",
        "29501",
        "--master-addr",
        "192.0.2.1",
    }


def test_only_the_first_node_has_the_api_server():
    files = render(resolved("gb300-tp16"), "nodes")
    assert len(files) == 4
    headless = ["--headless" in text for text in files.values()]
    assert headless == [False, True, True, True]
    ranks = [re.search(r"--node-rank (\d)", text).group(1) for text in files.values()]
    assert ranks == ["0", "1", "2", "3"]


def test_a_script_without_the_first_nodes_address_stops_at_once(tmp_path):
    script = tmp_path / "node1.sh"
    script.write_text(render(resolved("gb300-tp8"), "nodes")["gb300-tp8-node1.sh"])
    done = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode != 0 and "address of node 0" in done.stderr


def test_ray_places_the_workers_itself():
    head = render(resolved("gb300-tp16"), "ray")["gb300-tp16-ray-head.sh"]
    assert "--distributed-executor-backend ray" in head and "--nnodes" not in head
    assert "-ge 16" in head


@pytest.mark.parametrize("name", names())
def test_the_config_file_says_what_the_argv_says(name):
    found = resolved(name)
    data = yaml.safe_load(render(found, "config")[f"{name}.yaml"])
    assert data.pop("model") == found.model
    assert {key.replace("-", "_"): value for key, value in data.items()} == dict(found.args)
    for key in data:
        lookup(key.replace("-", "_"))


@pytest.mark.parametrize("name", names())
def test_the_environment_file_needs_no_quoting(name):
    found = resolved(name)
    lines = render(found, "config")[f"{name}.env"].splitlines()
    pairs = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert pairs == dict(found.env)
    assert all(shlex.quote(value) == value for value in pairs.values())


@pytest.mark.parametrize("name", names())
def test_manifests_are_valid_against_their_schemas(name):
    documents = manifests(name)
    for document in documents:
        if document["kind"] in {"ConfigMap", "Service"}:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    lws = find(documents, "LeaderWorkerSet")
    jsonschema.validate(lws, json.loads((SCHEMAS / "leaderworkerset-v1.json").read_text()))
    template = lws["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        if part in template:
            pod = {"apiVersion": "v1", "kind": "Pod", **template[part]}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    domain = find(documents, "ComputeDomain")
    if domain:
        jsonschema.validate(domain, json.loads((SCHEMAS / "computedomain-v1beta1.json").read_text()))


def test_trays_of_one_rack_claim_an_imex_channel():
    documents = manifests("gb300-tp16")
    claim = find(documents, "ComputeDomain")["spec"]["channel"]["resourceClaimTemplate"]["name"]
    template = find(documents, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        spec = template[part]["spec"]
        assert spec["resourceClaims"][0]["resourceClaimTemplateName"] == claim
        assert spec["containers"][0]["resources"]["claims"] == [{"name": spec["resourceClaims"][0]["name"]}]
    assert find(manifests("b300-tp8"), "ComputeDomain") is None
    assert find(manifests("h200-tp8-pp2"), "ComputeDomain") is None


@pytest.mark.parametrize("name", names())
def test_the_start_up_probe_outlasts_the_load(name):
    template = find(manifests(name), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    leader = template.get("leaderTemplate", template["workerTemplate"])["spec"]["containers"][0]
    probe = leader["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] >= ready_timeout_s(resolved(name)) > 600
    if "leaderTemplate" in template:
        assert "startupProbe" not in template["workerTemplate"]["spec"]["containers"][0]


@pytest.mark.parametrize("name", names())
def test_containers_have_shared_memory_and_listen_on_every_address(name):
    documents = manifests(name)
    template = find(documents, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    spec = template["workerTemplate"]["spec"]
    assert {"mountPath": "/dev/shm", "name": "shm"} in spec["containers"][0]["volumeMounts"]
    data = yaml.safe_load(find(documents, "ConfigMap")["data"][f"{name}.yaml"])
    assert data["host"] == "0.0.0.0"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["b300-tp8", "gb300-tp16", "cpu-tiny"])
def test_units_pass_systemds_own_check(name, tmp_path):
    unit = tmp_path / f"{name}.service"
    unit.write_text(render(resolved(name), "systemd", Site(directory=str(tmp_path)))[unit.name])
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert [line for line in done.stderr.splitlines() if name in line] == []


def test_several_nodes_get_a_file_that_says_which_one_it_is():
    files = render(resolved("gb300-tp16"), "systemd")
    assert "$HEADLESS" in files["gb300-tp16.service"]
    assert "NODE_RANK=1" in files["gb300-tp16-node.env.example"]


def test_a_generated_model_must_exist_before_files_point_at_it():
    with pytest.raises(UsageError, match="generated model") as error:
        render(config("cpu-tiny"), "systemd")
    assert "runtime.tiny" in error.value.hint


def test_an_unknown_format_names_the_nearest():
    with pytest.raises(UsageError) as error:
        render(resolved("b300-tp8"), "kubernets")
    assert error.value.hint == "did you mean `kubernetes`?"


def test_writing_never_overwrites_another_text(tmp_path):
    files = render(resolved("b300-tp8"), "config")
    write(files, tmp_path / "new")
    write(files, tmp_path / "new")
    (tmp_path / "new" / "b300-tp8.env").write_text("mine\n")
    with pytest.raises(UsageError, match="exists and differs"):
        write(files, tmp_path / "new")
    assert (tmp_path / "new" / "b300-tp8.env").read_text() == "mine\n"


def test_a_value_that_needs_quoting_is_refused():
    bad = config("b300-tp8", env={"NAME": 'a "b"'})
    with pytest.raises(UsageError, match="quoting"):
        render(bad, "config")
