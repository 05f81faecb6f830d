"""A resolved configuration becomes a command line and an environment."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from engine_helpers import tiny

from k3ctl.engine import command, preflight, rundir
from k3ctl.engine.node import Node
from k3ctl.errors import UsageError
from k3ctl.profiles import loader
from k3ctl.profiles.resolve import resolve

PYTHON = preflight.Interpreter(
    "/venv/bin/python", (3, 11, 7), "0.33.0", "2.13.0", ("lora_resolver", "k3_runtime")
)


def a_run(**changes) -> rundir.Run:
    facts = {
        "id": "r",
        "profile": "cpu-tiny",
        "host": "127.0.0.1",
        "port": 8123,
        "url": "http://127.0.0.1:8123",
    }
    facts |= {
        "served_model_name": "m",
        "tokenizer": "",
        "argv": (),
        "env": {},
        "started_at": 0.0,
        "dir": Path("/r"),
    }
    return rundir.Run(**facts | changes)


def build(**more):
    return command.build(tiny().with_model_path("/models/k3"), PYTHON, a_run(), ("/s", "/t"), {}, **more)


def test_the_engine_runs_in_its_own_python_with_the_profiles_arguments():
    built = build()
    assert built.argv[:5] == ("/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/k3")
    words = " ".join(built.argv)
    assert "--host 127.0.0.1" in words and "--port 8123" in words and "--load-format k3_seeded" in words
    assert built.env["VLLM_TARGET_DEVICE"] == "cpu"
    assert built.env["K3_WITNESS_DIR"] == "/r/witness"
    assert (built.env["VLLM_RPC_BASE_PATH"], built.env["TMPDIR"]) == ("/s", "/t")


def test_every_launch_has_the_witness_in_its_workers_unless_the_user_brings_an_extension():
    assert f"--worker-extension-cls {command.WITNESS}" in " ".join(build().argv)
    own = resolve(loader.load("cpu-tiny"), {"worker_extension_cls": "mine.Ext"}, {})
    argv = command.build(own.with_model_path("/m"), PYTHON, a_run(), ("/s", "/t"), {}).argv
    assert "mine.Ext" in argv and command.WITNESS not in argv


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, "k3_runtime,k3_witness,lora_resolver"),
        ("k3_runtime,k3_witness", "k3_runtime,k3_witness"),
        ("mine", "k3_runtime,k3_witness,mine"),
        ("", "k3_runtime,k3_witness"),
    ],
    ids=["not-set", "profile", "users-own", "none"],
)
def test_naming_our_plugins_loses_none_that_would_load_without_it(wanted, expected):
    assert command.plugins(wanted, PYTHON.plugins) == expected


def test_other_nodes_are_headless_and_share_the_master():
    first = build(node=Node(0, "192.0.2.1", 29501)).argv
    second = build(node=Node(1, "192.0.2.1", 29501)).argv
    assert "--headless" not in first and "--headless" in second
    assert second[second.index("--node-rank") + 1] == "1"
    assert second[second.index("--master-addr") + 1] == "192.0.2.1"


def test_keys_go_to_the_engine_in_variables_and_never_in_its_command_line():
    resolved = tiny(api_key="key-1", hf_token="key-2").with_model_path("/m")
    built = command.build(resolved, PYTHON, a_run(), ("/s", "/t"), {"VLLM_API_KEY": "key-env"})
    assert "key-1" not in " ".join(built.argv) and "key-2" not in " ".join(built.argv)
    assert "--api-key" not in built.argv and "--hf-token" not in built.argv
    assert (built.env["VLLM_API_KEY"], built.env["HF_TOKEN"], built.api_key) == ("key-1", "key-2", "key-1")
    assert build().api_key is None


def test_several_api_keys_are_refused_because_only_a_command_line_could_carry_them():
    resolved = tiny(api_key="key-1,key-2").with_model_path("/m")
    with pytest.raises(UsageError, match="2 values") as caught:
        command.build(resolved, PYTHON, a_run(), ("/s", "/t"), {})
    assert "key-1" not in caught.value.message


def test_sockets_get_a_short_directory_although_tmpdir_is_long(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    sockets, temporary = command.scratch_directories()
    try:
        assert len(sockets) <= 60 and temporary.startswith(str(long))
    finally:
        Path(sockets).rmdir()
