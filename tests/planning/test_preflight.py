"""One answer for doctor, plan and serve: the group, what it leaves out, what is not known, and commands that work."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k3ctl import cli
from k3ctl.checks.captures import read_folder
from k3ctl.checks.merge import Gathered
from k3ctl.errors import MachineError
from k3ctl.gpus import from_json
from k3ctl.gpus.types import Snapshot
from k3ctl.host.types import Host, Library
from k3ctl.machine import read as reader
from k3ctl.machine.record import Machine
from k3ctl.planning import prefix
from k3ctl.planning.detect import of_machines
from k3ctl.planning.plan import make
from k3ctl.planning.preflight import Standing, preflight
from k3ctl.planning.proposal import Proposal
from k3ctl.planning.rules import ALL, changes, evaluate
from k3ctl.planning.runnable import answer, judge
from k3ctl.profiles.loader import load, load_all, names
from k3ctl.profiles.overrides import parse_set
from k3ctl.profiles.resolve import resolve

from .altering import FIXTURES, SNAPSHOTS
from .building import deployment

ROUND2 = FIXTURES / "round2"


def snapshot(name: str) -> Snapshot:
    path = next(p for p in SNAPSHOTS if p.stem in (name, f"nvml-{name}"))
    return from_json(json.loads(path.read_text(encoding="utf-8")))[0]


def asked(
    profile: str, *shots: Snapshot, hosts: dict[str, Host] | None = None, share: bool = False, **typed: str
):
    nodes = [node for shot in shots for node in shot.nodes]
    machines = Gathered(tuple(Machine(node, (hosts or {}).get(node.hostname)) for node in nodes))
    overrides = {key.replace("__", "."): value for key, value in typed.items()}
    return preflight(Proposal(resolve(load(profile), overrides)), machines, share=share)


# the three agree


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_doctor_plan_and_serve_give_one_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from k3ctl.commands.serve import session

    shot = from_json(json.loads(path.read_text(encoding="utf-8")))[0]
    machines = Gathered(tuple(map(Machine, shot.nodes)))
    report = judge(machines, profiles=load_all())
    here = Machine(shot.nodes[0]) if len(shot.nodes) == 1 else None
    for entry in report.runnable:
        resolved = resolve(load(entry.profile))
        planned = make(Proposal(resolved, of_machines(machines, "test")))
        assert planned.preflight.standing.value == entry.standing, entry.profile
        assert planned.can_run == (entry.standing not in (Standing.REFUSED, Standing.SHORT))
        if here is None or entry.profile == "cpu-tiny":
            continue
        monkeypatch.setattr(reader, "read", lambda **_: here)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        share = answer(load(entry.profile), machines, share=True)
        try:
            session.check(resolved)
            refused: tuple[str, ...] = ()
        except MachineError as error:
            refused = error.reasons
        assert len(refused) == len(share.blocking), (entry.profile, refused)


# the group


def test_a_group_is_chosen_from_what_is_healthy_and_the_rest_is_named() -> None:
    found = asked("gb300-tp8", snapshot("gb300-4trays-one-unhealthy"))
    assert found.standing is Standing.RUNS
    assert "tray02" not in found.group.members and len(found.group.members) == 2
    assert [entry.node for entry in found.group.left_out] == ["tray02"]
    assert "GPU 1" in str(found.group.left_out[0])
    whole = asked("gb300-tp16", snapshot("gb300-4trays-one-unhealthy"))
    assert whole.standing is Standing.REFUSED
    assert "found 12" in whole.blocking[0].evidence and "tray02" in whole.blocking[0].evidence


def test_a_free_host_is_taken_before_a_held_one() -> None:
    held, free = snapshot("b300-all-held").nodes[0], snapshot("hgx-b300").nodes[0]
    both = Snapshot((replace(held, hostname="a"), replace(free, hostname="b")))
    found = asked("b300-tp8", both)
    assert (found.standing, list(found.group.members)) == (Standing.RUNS, ["b"])
    assert "memory is held" in str(found.group.left_out[0])
    alone = asked("b300-tp8", snapshot("b300-all-held"))
    assert "cannot start now" in alone.blocking[0].evidence and "pid 3117" in alone.blocking[0].evidence


def test_one_host_more_than_needed_may_be_broken() -> None:
    good = snapshot("hgx-b300").nodes[0]
    for name in ("hgx-b300-7of8", "b300-one-b200", "hgx-b300-fm-down", "mig-enabled", "hgx-b300-throttled"):
        bad = replace(snapshot(name).nodes[0], hostname="bad")
        found = asked("b300-tp8", Snapshot((bad, replace(good, hostname="good"))))
        assert (found.standing, list(found.group.members)) == (Standing.RUNS, ["good"]), name


def test_hosts_of_two_drivers_or_clusters_do_not_serve_together() -> None:
    trays = snapshot("gb300-nvl72-4trays").nodes
    other = [replace(node, nvml=replace(node.nvml, driver="590.1")) for node in trays[:2]]
    mixed = asked("gb300-tp16", Snapshot((*other, *trays[2:])))
    assert mixed.standing is Standing.REFUSED
    assert asked("gb300-tp8", Snapshot((*other, *trays[2:]))).standing is Standing.RUNS
    two = asked("gb300-tp8", snapshot("gb300-two-cliques"))
    assert {"requires.nvlink-domain", "fabric.clique-mismatch"} <= {reason.id for reason in two.blocking}


def test_too_few_hosts_is_no_fault_of_theirs() -> None:
    tray = snapshot("gb300-nvl72-tray")
    assert asked("gb300-tp16", tray).standing is Standing.SHORT
    assert asked("gb300-tp16", tray, share=True).standing is Standing.SHARE
    assert asked("gb300-tp16", snapshot("gb300-imex-missing"), share=True).standing is Standing.REFUSED


@pytest.mark.parametrize(
    ("name", "profile", "reason"),
    [
        ("hgx-b300-7of8", "b300-tp8", "requires.gpus"),
        ("hgx-h200", "b300-tp8", "requires.gpu"),
        ("h200nvl-2hosts", "h200-tp16", "requires.gpu"),
        ("hgx-b300-fm-down", "b300-tp8", "fabricmanager.inactive"),
        ("mig-enabled", "b300-tp8", "mig.enabled"),
        ("gb300-old-driver", "gb300-tp16", "driver.too-old-for-cuda13"),
        ("gb300-4trays-imex-minus3", "gb300-tp8", "imex.not-ready"),
        ("gb300-multicast-env-off", "gb300-tp16", "multicast.env-disabled"),
        ("b300-one-b200", "b300-tp8", "product.odd-gpu"),
        ("driver-library-mismatch", "b300-tp8", "driver.library-mismatch"),
    ],
)
def test_what_stands_against_a_start_is_named(name: str, profile: str, reason: str) -> None:
    found = asked(profile, snapshot(name))
    assert found.standing is Standing.REFUSED
    assert reason in {entry.id for entry in found.blocking}


def test_a_typed_variable_goes_before_the_hosts_own_and_the_profiles_gives_way() -> None:
    tray = snapshot("gb300-nvl72-tray").nodes[0]
    off = Snapshot((replace(tray, env={"NCCL_NVLS_ENABLE": "0"}),))
    assert asked("gb300-tp16", off, share=True).standing is Standing.REFUSED
    assert asked("gb300-tp16", off, share=True, env__NCCL_NVLS_ENABLE="1").standing is Standing.SHARE


# captures


def copied(name: str):
    return read_folder(ROUND2 / name)


@pytest.mark.parametrize(
    ("folder", "profile", "standing"),
    [
        ("L-gb300", "gb300-tp16", Standing.SHORT),
        ("L-a100", "b300-tp8", Standing.REFUSED),
        ("topo-7gpu", "b300-tp8", Standing.REFUSED),
        ("report-R09/capture", "b300-tp8", Standing.REFUSED),
        ("report-R13/capture", "b300-tp8", Standing.REFUSED),
        ("report-R14/capture", "gb300-tp16", Standing.REFUSED),
        ("report-R14/capture", "gb300-tp8", Standing.UNKNOWN),
    ],
)
def test_a_capture_folder_reaches_its_standing(folder: str, profile: str, standing: Standing) -> None:
    assert answer(load(profile), copied(folder)).standing is standing


def test_two_imex_domains_in_one_clique_are_told_apart() -> None:
    found = answer(load("gb300-tp16"), copied("report-R14/capture"))
    (said,) = [reason for reason in found.blocking if reason.id == "imex.several-domains"]
    assert "tray0, tray1 list only 192.0.2.11, 192.0.2.12" in said.evidence and "nodes_config" in said.remedy
    pair = answer(load("gb300-tp8"), copied("report-R14/capture")).group.members
    assert set(pair) in ({"tray0", "tray1"}, {"tray2", "tray3"})


# serve and its hints


def hinted(profile: str, monkeypatch: pytest.MonkeyPatch, **typed: str) -> str:
    from k3ctl.commands.serve import session

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = Machine(snapshot("hgx-b300").nodes[0])
    monkeypatch.setattr(reader, "read", lambda **_: here)
    overrides = {key.replace("__", "."): value for key, value in typed.items()}
    with pytest.raises(MachineError) as refused:
        session.check(resolve(load(profile), overrides), overrides)
    return refused.value.hint or ""


@pytest.mark.parametrize(
    "typed",
    [
        {"enforce_eager": "true"},
        {"use_replayssm": "true"},
        {"mamba_ssm_cache_dtype": "bfloat16"},
        {"kv_cache_dtype": "auto", "max_num_seqs": "4"},
        {"speculative_config__num_speculative_tokens": "9"},
        {"decode_context_parallel_size": "4"},
        {"env__TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
        {"prefix_cache_retention_interval": "1000"},
    ],
    ids=lambda typed: next(iter(typed)),
)
def test_serve_refuses_plans_reasons_and_its_hint_is_a_command_that_works(
    typed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = hinted("b300-tp8", monkeypatch, **typed)
    commands = re.findall(r"`k3ctl ([^`]+)`", hint)
    assert commands[0].startswith("serve -p b300-tp8 --set ")
    for command in commands:
        parses(command)
    words = shlex.split(commands[0])
    overrides = parse_set(words[i + 1] for i, word in enumerate(words) if word == "--set")
    again = Proposal(resolve(load("b300-tp8"), overrides))
    assert not [finding.rule.id for finding in evaluate(ALL, again) if finding.rule.effect.blocks]
    kept = set(typed) - {key.replace(".", "__") for key in overrides}
    assert not kept


def parses(command: str) -> None:
    """The command line is one that k3ctl's own parser takes."""
    cli._register_commands()
    words = shlex.split(command)
    done = CliRunner().invoke(cli.app, [words[0], "--help"])
    assert done.exit_code == 0
    for word in words[1:]:
        if word.startswith("--"):
            assert word in done.output, word


def test_a_change_that_would_not_help_alone_is_not_hinted() -> None:
    made = deployment("b300-tp8", {"tensor_parallel_size": 4, "enforce_eager": True}, hardware="B300:4")
    assert "tensor_parallel_size" in changes(evaluate(ALL, made)) or changes(evaluate(ALL, made)) == {}


# NCCL and pipeline parallelism


@pytest.mark.parametrize(
    ("nccl", "plugins", "standing"),
    [
        ("2.28.9", None, Standing.RUNS),
        ("2.28.9", "other", Standing.REFUSED),
        ("2.29.7", "other", Standing.RUNS),
    ],
)
def test_pipeline_stages_need_a_new_nccl_or_the_plugin(
    nccl: str, plugins: str | None, standing: Standing
) -> None:
    board = snapshot("hgx-h200").nodes[0]
    nodes = [replace(board, hostname=name) for name in ("a", "b")]
    hosts = {
        n: Host(n, packages={"vllm": "0.33.0"}, libraries=(Library("nccl", "", nccl, "wheel"),)) for n in "ab"
    }
    typed = {"env__VLLM_PLUGINS": plugins} if plugins else {}
    backend = {"additional_config": "none"}
    found = asked("h200-tp8-pp2", Snapshot(tuple(nodes)), hosts=hosts, **typed, **backend)
    assert found.standing is standing
    warned = "nccl.pynccl-off" in {note.id for note in found.notes}
    assert warned == (nccl == "2.28.9" and standing is Standing.RUNS)


# the prefix cache


@pytest.mark.parametrize(
    ("block", "interval", "prompt", "again", "second", "third"),
    [
        (768, 0, 768, 0, 0, 768),
        (768, 0, 769, 768, 0, 768),
        (768, 0, 8000, 7680, 0, 7680),
        (1536, 0, 8000, 7680, 0, 7680),
        (768, 1536, 8000, 7680, 7680, 7680),
        (768, 3072, 8000, 7680, 6144, 7680),
    ],
)
def test_what_a_prefix_cache_hits(
    block: int, interval: int, prompt: int, again: int, second: int, third: int
) -> None:
    plan = prefix.PrefixPlan(block, interval, 0)
    found = (plan.repeated(prompt), plan.shared(prompt, seen=1), plan.shared(prompt, seen=2))
    assert found == (again, second, third)
    assert plan.shared(prompt, seen=0) == 0


def test_a_speculator_that_looks_ahead_costs_a_block_with_a_connector() -> None:
    plan = prefix.PrefixPlan(768, 0, 1)
    assert (plan.never, plan.repeated(1536), plan.repeated(1537)) == (1536, 0, 768)


def test_profiles_with_prefix_caching_and_speculation_say_what_will_hit() -> None:
    for name in names():
        d = Proposal(resolve(load(name)))
        if prefix.of(d) and d.method:
            assert any("prefix cache" in note for note in load(name).notes), name
            assert any("will not hit" in line for line in prefix.of(d).lines(8000))


ONE_GPU = """schema: 1
name: one-gpu
summary: A profile for one GPU
status: untested
goal: latency
requires: {gpu: [H200], gpus: 1, nodes: 1, driver: ">=580", vllm: ">=0.33.0,<0.34"}
model: {id: moonshotai/Kimi-K3, served_name: kimi-k3}
serve: {args: {max_model_len: 4096}}
decode: {backend: auto, max_num_seqs: 64, max_num_batched_tokens: 4096}
expect: {kv_sequence_tokens: 4096, kv_sequences: 16}
bench: {presets: [decode]}
"""


@pytest.mark.parametrize("links", ["up", "down"])
@pytest.mark.parametrize("index", [0, 1])
def test_one_gpu_of_a_virtual_machine_takes_part_without_a_peer(
    tmp_path: Path, index: int, links: str
) -> None:
    """A single H200 whose fabric is registered nowhere, or with nobody, works for itself."""
    profile = tmp_path / "one-gpu.yaml"
    profile.write_text(ONE_GPU)
    data = json.loads((FIXTURES / "nvml-h200-x2-vm.json").read_text())
    node = (data.get("nodes") or [data])[0]
    node["gpus"], node["pairs"] = [node["gpus"][index]], []
    if links == "down":
        node["gpus"][0]["fabric"] = {**node["gpus"][0]["fabric"], "state": 0, "status": 3}
        for link in node["gpus"][0]["links"]:
            link["state"] = 0
    found = asked(str(profile), from_json(data)[0])
    counted = [reason for reason in found.blocking if reason.id == "requires.gpus"]
    assert counted == [] and list(found.group.members.values()) == [(index,)]
