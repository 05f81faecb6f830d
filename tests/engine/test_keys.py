"""However a key is given to a launch, it works, and stands in no file of the run, no command line and no listing."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_helpers import NOTHING, tiny

from k3ctl import cli
from k3ctl.engine import launch, procs

KEY = "planted-0123456789-key"


@pytest.mark.parametrize(
    ("sets", "environment"),
    [
        ({}, {"VLLM_API_KEY": KEY}),
        ({"api_key": KEY}, {}),
        ({"env.MY_SERVICE_TOKEN": KEY}, {}),
        ({"env.VLLM_API_KEY": KEY}, {}),
        ({"env.HF_TOKEN": KEY}, {}),
        ({"env.SITE_PASSWORD": KEY}, {}),
        ({"hf_token": KEY}, {}),
    ],
    ids=["environment", "--set", "some token", "--set env.", "hub token", "password", "--set hf_token"],
)
def test_a_key_is_in_no_file_of_the_run_and_in_no_listing(
    sets, environment, fake_python, leftovers, monkeypatch, capsys
):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with launch.start(tiny(**sets), port=0) as engine:
        assert engine.run.state == "ready"
        for words in (["ps"], ["ps", "--json"], ["logs", engine.id]):
            cli.main(words)
        out, err = capsys.readouterr()
        assert engine.id in out
        assert "planted-" not in out + err
        files = [path for path in engine.run_dir.rglob("*") if path.is_file()]
        assert engine.run_dir / "run.json" in files
        assert [path for path in files if b"planted-" in path.read_bytes()] == []
        members = [p.pid for p in procs.everyone() if p.session == engine.run.session]
        assert len(members) >= 4, "reaper, supervisor, server, core"
        # what every user of the machine may read; `procs.command_line` hides keys itself
        words = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in members]
        assert any(b"vllm.entrypoints" in line for line in words)
        assert not any(b"planted-" in line for line in words)
    assert leftovers() == NOTHING
