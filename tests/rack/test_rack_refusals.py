"""`k3ctl serve --nodes` that cannot start: one clear line that names the node, a hint, and nothing left behind."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from k3ctl import cli

TWO = ["--set", "nnodes=2", "--set", "tensor_parallel_size=2", "--port", "0"]


def serve(capsys: pytest.CaptureFixture[str], nodes: str, *words: str) -> tuple[int, dict[str, object], str]:
    code = cli.main(["serve", "-p", "cpu-tiny", "--nodes", nodes, *(words or TWO), "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out)["error"], said.err


@pytest.mark.parametrize(
    ("nodes", "words", "message"),
    [
        ("a,a", TWO, "`a` is named 2 times"),
        ("a,,b", TWO, "`` is no host name"),
        ("a,-oProxyCommand=x", TWO, "`-oProxyCommand=x` is no host name"),
        ("a,b c", TWO, "`b c` is no host name"),
        ("", TWO, "`` is no host name"),
        ("a,b,c", TWO, "--nodes names 3, and `cpu-tiny` spans 2"),
        ("a,b", ["--port", "0"], "--nodes names 2, and `cpu-tiny` spans 1"),
        ("a", ["--port", "0"], "--nodes needs two or more"),
        ("a,b", [*TWO, "--node-rank", "1"], "--nodes numbers the nodes itself: leave --node-rank out"),
    ],
)
def test_names_that_cannot_be_a_group_are_refused_before_any_ssh(
    nodes, words, message, hosts, capsys, monkeypatch
):
    monkeypatch.setenv("PATH", "/nonexistent")
    code, error, _ = serve(capsys, nodes, *words)
    assert (code, error["message"]) == (2, message)


@pytest.mark.parametrize(
    ("bad", "message", "hint"),
    [
        ("off1", "off1: ssh: connect to host off1 port 22: Connection refused", "no sshd listens"),
        ("nowhere1", "nowhere1: ssh: Could not resolve hostname", "check the name"),
        ("stranger1", "stranger1: Host key verification failed.", "known_hosts"),
        ("locked1", "locked1: root@locked1: Permission denied (publickey).", "ssh-add"),
        ("bare1", "bare1: there is no `k3ctl`", "--remote-k3ctl"),
        ("old1", "old1: its k3ctl is too old", "the same version everywhere"),
        ("mute1", "mute1: no answer within 1 s", "--node-timeout"),
    ],
)  # fmt: skip
def test_a_host_that_cannot_be_used_is_named_with_what_to_do(bad, message, hint, hosts, capsys):
    limit = [*TWO, "--node-timeout", "1" if bad == "mute1" else "60", "--skip-checks"]
    code, error, _ = serve(capsys, f"{bad},off2", *limit)
    assert code == 3 and error["message"] == "2 of 2 nodes cannot serve this"
    assert error["reasons"][0].startswith(message), error
    assert hint in error["hint"]


def test_several_hosts_that_cannot_be_used_are_all_named(hosts, capsys):
    code, error, _ = serve(capsys, "off1,stranger2")
    assert (code, error["message"]) == (3, "2 of 2 nodes cannot serve this")
    assert [line.split(":")[0] for line in error["reasons"]] == ["off1", "stranger2"]


@pytest.mark.parametrize(
    ("second", "code", "message"),
    [
        ("other1", 3, "the nodes have different versions: tray0 has vllm 0.33.0, other1 has vllm 0.33.1"),
        pytest.param(
            "shell1",
            2,
            "the configuration differs on tray0 and shell1: env.VLLM_NO_USAGE_STATS",
            marks=pytest.mark.slow,
        ),
        pytest.param("far1", 2, "tray0: 127.0.0.1 is loopback, so far1 cannot reach it", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_nodes_that_differ_are_refused(second, code, message, hosts, capsys):
    seen, error, _ = serve(capsys, f"tray0,{second}")
    assert (seen, error["message"]) == (code, message)


def test_two_names_of_one_node_are_refused(hosts, capsys):
    code, error, _ = serve(capsys, "twin0,twin1")
    assert (code, error["message"].startswith("`twin0` and `twin1` are one and the same node")) == (2, True)


@pytest.mark.parametrize("option", ["--port", pytest.param("--master-port", marks=pytest.mark.slow)])
def test_a_port_that_is_taken_on_node_0_names_the_node_and_the_option(option, hosts, capsys):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        words = [word for word in TWO if option != "--port" or word not in ("--port", "0")]
        code, error, _ = serve(capsys, "tray0,chatty1", *words, option, port)
    assert code in (2, 3) and error["message"].startswith("tray0: ") and port in error["message"], error
    assert option in error["hint"]


def test_hosts_without_the_gpus_of_the_profile_are_refused_by_the_same_rules_as_doctor(hosts, capsys):
    names = "tray0,tray1"
    code = cli.main(["serve", "-p", "h200-tp16", "--nodes", names, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert code == 3 and error["message"] == f"{names} cannot serve `h200-tp16`", error
    assert error["reasons"] and f"k3ctl doctor --profile h200-tp16 --nodes {names}" in error["hint"]
    assert not list(hosts.rglob("run.json"))


def test_a_profile_file_that_one_node_lacks_names_the_node(hosts, capsys, tmp_path):
    code = cli.main(["serve", "-p", str(tmp_path / "none.yaml"), "--nodes", "a,b", "--json"])
    assert code == 2 and "none.yaml" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_one_host_that_cannot_be_used_is_named_alone_and_nothing_is_started_on_the_other(hosts, capsys):
    code, error, _ = serve(capsys, "tray0,off1")
    assert (code, error["message"]) == (3, "off1: ssh: connect to host off1 port 22: Connection refused")
    assert not list(Path(hosts).rglob("*.json"))
