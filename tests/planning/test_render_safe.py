"""Rendered files do what they say and nothing else: executed with planted payloads; no file holds a key."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from k3ctl.errors import UsageError
from k3ctl.planning.render import FORMATS, Site, render
from k3ctl.profiles.vllm_args import argv

from .building import config

PAYLOADS = [
    "$(touch {})", "`touch {}`", "; touch {} ;", "a' ; touch {} ; '", 'a" ; touch {} ; "', "--x;touch${{IFS}}{}",
    "| touch {}", "&& touch {}", "\\'; touch {} #", "${{x:-$(touch {})}}",
    "!!python/object/apply:os.system ['touch {}']",
    "a: [b, {{c: 'touch {}'}}]", "# comment {}", "%n %i {}", "*", "~", "- x", "yes", "0x10", "",
]  # fmt: skip


def run_script(path: Path, folder: Path) -> list[str]:
    """The words that ``vllm`` was started with."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    said = folder / "said"
    programs = {
        "vllm": f'printf "%s\\0" "$@" > {said}',
        "srun": 'shift; exec "$@"',
        "scontrol": "echo node0",
        "ray": "exit 0",
        "python3": "echo 1000",
    }
    for name, text in programs.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    env = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "MASTER_ADDR": "192.0.2.1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "n",
    }
    env |= {"VLLM_API_KEY": "k", "HEAD_ADDR": "192.0.2.1"}
    subprocess.run(["bash", str(path)], check=True, env=env, cwd=folder, capture_output=True, timeout=30)
    return said.read_text().split("\0")[:-1]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(
    "format_name", ["command", "nodes", "ray", "slurm", "config", "kubernetes", "systemd"]
)
def test_no_value_of_a_configuration_is_executed(payload: str, format_name: str, tmp_path: Path) -> None:
    planted = tmp_path / "pwned"
    value = payload.format(planted)
    found = config("b300-tp8")
    args = {
        **found.args,
        "served_model_name": [value or "x", value or "x"],
        "chat_template": value,
        "speculative_config": {"model": value},
    }
    found = replace(found, args=args, model=value or "m")
    for name, text in render(found, format_name, Site(directory=str(tmp_path))).items():
        (tmp_path / name).write_text(text)
    for path in tmp_path.glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            data = document
            if document and document.get("kind") == "ConfigMap":
                data = yaml.safe_load(document["data"]["b300-tp8.yaml"])
            if data and "chat-template" in data:
                assert (data["chat-template"], data["model"]) == (value, value or "m")
    for path in [*tmp_path.glob("*.sh"), *tmp_path.glob("*.sbatch")]:
        words = run_script(path, tmp_path)
        if path.suffix == ".sh" and format_name != "ray":
            assert words == ["serve", *argv(found)]
    assert not planted.exists()


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("bad", ["a\nb", "a\r", "\x00", "\x1b[2J", "\u2028"], ids=repr)
@pytest.mark.parametrize(
    "place", ["model", "args", "nested", "key", "env", "summary", "name", "directory", "image"]
)
def test_line_breaks_and_controls_are_refused_wherever_they_stand(
    format_name: str, bad: str, place: str
) -> None:
    found, site = config("b300-tp8"), Site()
    if place in ("summary", "name"):
        found = replace(found, profile=found.profile.model_copy(update={place: bad}))
    elif place in ("directory", "image"):
        site = replace(site, **{place: f"/x{bad}"})
    elif place == "model":
        found = replace(found, model=bad)
    elif place == "env":
        found = replace(found, env={**found.env, "X": bad})
    else:
        extra = {
            "args": {"x": bad},
            "nested": {"additional_config": {"a": [bad]}},
            "key": {"additional_config": {bad: 1}},
        }
        found = replace(found, args={**found.args, **extra[place]})
    with pytest.raises(UsageError):
        render(found, format_name, site)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    ("place", "bad"),
    [("name", "../../etc/cron.d/x"), ("name", "a b"), ("name", "-x"), ("name", "a;b"), ("name", "a%n"), ("name", ""),
     ("directory", "/etc/$(id)"), ("directory", "relative"), ("directory", "/a b"), ("directory", "/a/%i"),
     ("directory", "/a/../b"), ("image", "x;y"), ("image", "$(id)")],
)  # fmt: skip
def test_names_and_paths_are_checked(format_name: str, place: str, bad: str) -> None:
    found, site = config("b300-tp8"), Site()
    if place == "name":
        found = replace(found, profile=found.profile.model_copy(update={"name": bad}))
    else:
        site = replace(site, **{place: bad})
    with pytest.raises(UsageError):
        render(found, format_name, site)


@pytest.mark.parametrize("key", ["A-B", "A B", "1A", "A;touch x", "A$(id)", ""])
def test_names_of_variables_are_checked(key: str) -> None:
    found = config("b300-tp8")
    with pytest.raises(UsageError):
        render(replace(found, env={**found.env, key: "x"}), "command")


@pytest.mark.parametrize("format_name", FORMATS)
def test_no_file_holds_a_key(format_name: str) -> None:
    found = config("b300-tp8")
    args = {**found.args, "api_key": ["planted-1"], "hf_token": "planted-2"}
    found = replace(found, args=args, env={**found.env, "MY_SECRET": "planted-3", "HF_TOKEN": "planted-4"})
    files = render(found, format_name)
    text = "\n".join(files.values())
    assert "planted" not in text
    for name in ("VLLM_API_KEY", "HF_TOKEN", "MY_SECRET"):
        assert name in text, "whoever uses the files must give it"
    nested = replace(found, args={**found.args, "additional_config": {"password": "planted-5"}})
    with pytest.raises(UsageError, match="additional_config"):
        render(nested, format_name)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_server_on_all_addresses_demands_a_key(format_name: str, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1"):
        found = config("b300-tp8")
        found = replace(found, args={**found.args, "host": host})
        assert "VLLM_API_KEY" in "\n".join(render(found, format_name).values())
    closed = "\n".join(render(config("b300-tp8"), format_name).values())
    assert ("VLLM_API_KEY" in closed) == (format_name == "kubernetes"), (
        "on loopback there is nobody to keep out"
    )


def test_a_script_of_an_open_server_stops_without_its_key(tmp_path: Path) -> None:
    found = config("b300-tp8")
    files = render(replace(found, args={**found.args, "host": "0.0.0.0"}), "command")
    script = tmp_path / "x.sh"
    script.write_text(next(iter(files.values())))
    done = subprocess.run(
        ["bash", str(script)], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "VLLM_API_KEY" in done.stderr


def test_pods_take_the_key_from_a_secret() -> None:
    text = next(iter(render(config("gb300-tp16"), "kubernetes").values()))
    documents = [document for document in yaml.safe_load_all(text) if document]
    template = next(d for d in documents if d["kind"] == "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        env = {entry["name"]: entry for entry in template[part]["spec"]["containers"][0]["env"]}
        reference = env["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": "gb300-tp16-keys", "key": "VLLM_API_KEY"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_of_an_open_server(tmp_path: Path) -> None:
    found = config("b300-tp8")
    found = replace(found, args={**found.args, "host": "0.0.0.0"})
    unit = tmp_path / "b300-tp8.service"
    unit.write_text(render(found, "systemd", Site(directory=str(tmp_path)))[unit.name])
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert [line for line in done.stderr.splitlines() if "b300" in line] == []
    assert os.fspath(tmp_path / "b300-tp8.keys") in unit.read_text()
