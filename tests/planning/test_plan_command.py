"""``k3ctl plan`` and ``k3ctl profiles`` as a user meets them: text, envelope, exit codes."""

import json
from pathlib import Path

import pytest

from k3ctl.cli import main
from k3ctl.profiles.loader import names

FIXTURES = Path(__file__).parent.parent / "fixtures"
TRAYS = str(FIXTURES / "nvml-gb300-nvl72-4trays.json")


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("K3CTL_SET", raising=False)

    def run(*words):
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def data(run):
    def data(*words):
        code, out, _ = run(*words, "--json")
        envelope = json.loads(out)
        assert envelope["exit_code"] == code
        return code, envelope

    return data


def test_a_rack_gets_tp16_and_the_reasons(run):
    code, out, _ = run("plan", "--hardware", TRAYS)
    assert code == 0
    assert "for latency: gb300-tp16 (estimated" in out
    assert "gb300-tp8" in out and "needs B300, found GB300" in out
    assert "basis: byte floor" in out


def test_split_trays_are_refused_and_named(run):
    code, out, _ = run("plan", "--hardware", FIXTURES / "nvml-gb300-two-cliques.json")
    assert code == 3
    assert "no profile can run here" in out and "4 GPUs on tray00" in out and "4 GPUs on tray01" in out


def test_an_hgx_b300_gets_tp8(data):
    code, envelope = data("plan", "--hardware", FIXTURES / "nvml-hgx-b300.json")
    assert (code, envelope["schema"]) == (0, "k3ctl.selection/1")
    assert envelope["data"]["chosen"]["profile"] == "b300-tp8"
    assert envelope["data"]["plan"]["verdict"] == "specialized"


def test_an_hgx_h200_is_told_why_k3_does_not_fit(data):
    code, envelope = data("plan", "--hardware", FIXTURES / "nvml-hgx-h200.json")
    assert code == 3 and envelope["data"]["chosen"] is None
    assert "1128 GB < 1680 GB" in envelope["data"]["shortfall"]


def test_a_plan_that_cannot_run_gives_all_reasons(data):
    changes = [
        "enable_expert_parallel=true",
        "use_replayssm=true",
        "speculative_config.num_speculative_tokens=8",
    ]
    typed = [word for change in changes for word in ("--set", change)]
    code, envelope = data("plan", "gb300-tp16", "--hardware", "GB300:16", *typed)
    reasons = {finding["rule"]: finding for finding in envelope["data"]["findings"]}
    assert code == 3 and envelope["data"]["verdict"] == "cannot run"
    assert {"specialized.ep", "specialized.replayssm", "specialized.drafts"} <= set(reasons)
    assert reasons["specialized.drafts"]["changes"] == {"speculative_config.num_speculative_tokens": 7}
    assert reasons["specialized.drafts"]["vllm_reason"] == "more than 7 speculative tokens"


def test_the_blog_command_explains_what_is_refused_about_it(run):
    code, out, _ = run("plan", "b300-tp8-8k1k-blog")
    assert code == 0 and "verdict: runs; all decode steps take the standard path" in out
    assert "num_speculative_tokens is 8" in out and "use 7" in out
    assert "published P8" in out


def test_a_plan_has_a_stable_set_of_keys(data):
    _, envelope = data(
        "plan", "gb300-tp16", "--hardware", "GB300:16", "--input-tokens", "8000", "--output-tokens", "1000"
    )
    assert set(envelope["data"]) == {
        "profile", "status", "verdict", "can_run", "vllm", "hardware", "preflight", "findings", "if_specialized",
        "memory", "prefix_cache", "budget", "estimate",
    }  # fmt: skip
    assert envelope["data"]["memory"]["sequence_tokens"] == 9000
    assert envelope["data"]["memory"]["label"] == envelope["data"]["estimate"]["label"] == "estimate"


@pytest.mark.parametrize(
    ("source", "quantities"),
    [
        ("vllm-log-ok-b300-tp8-specialized.txt", {"weights", "cache", "sequences"}),
        ("metrics-healthy-c1-k7-al3.84.prom", {"block,", "cache", "sequences"}),
    ],
)
def test_predicted_stands_beside_actual(data, source, quantities):
    code, envelope = data("plan", "b300-tp8", "--actual", FIXTURES / source)
    rows = envelope["data"]["actual"]
    assert code == 0 and {row["quantity"].split()[0] for row in rows} == quantities
    assert all(
        row["difference"] == pytest.approx(row["actual"] / row["predicted"] - 1, abs=0.01) for row in rows
    )


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["gb300-tp61"], 2, "unknown profile `gb300-tp61`", "gb300-tp16"),
        (["b300-tp8", "--set", "max_num_sqes=4"], 2, "unknown vLLM argument", "max_num_seqs"),
        (["b300-tp8", "--set", "tp=4", "--set", "tensor_parallel_size=8"], 2, "contradict each other", ""),
        (
            ["b300-tp8", "--set", "max_num_batched_tokens=16q"],
            2,
            "takes an integer such as 16384, 16k or 1M",
            "",
        ),
        (["--for", "latncy"], 2, "unknown goal `latncy`", "latency"),
        (["--hardware", "GB301:4"], 2, "unknown GPU product", "GB300"),
        (["--hardware", "no-such.json"], 2, "no snapshot file", "doctor --json"),
        (["--hardware", "B300"], 2, "no snapshot file", "GB300:16"),
        (["--hardware", "B300:0"], 2, "at least one GPU", ""),
        (["--render", "slurm"], 2, "name a profile for that", "profiles list"),
        (["b300-tp8", "--render", "slurmm"], 2, "unknown render format", "slurm"),
        (["cpu-tiny", "--render", "systemd"], 2, "generated model", "--model"),
        (["b300-tp8", "--vllm-version", "new"], 2, "`new` is no version", ""),
        (["b300-tp8", "--actual", "no-such.log"], 2, "cannot read `no-such.log`", ""),
        (["b300-tp8", "--actual", __file__], 2, "neither an engine log", "engine.log"),
        (["cpu-tiny", "--actual", __file__], 2, "no memory plan", ""),
        (["b300-tp8", "--concurrency", "0"], 2, "", ""),
        (["b300-tp8", "--check-with-vllm", "--python", "/no/python"], 3, "no Python at", ""),
        (["cpu-tiny", "--check-with-vllm"], 2, "CPU profile", ""),
    ],
)
def test_bad_input_gets_one_line_and_a_hint(run, words, code, message, hint):
    found, out, err = run("plan", *words)
    assert found == code and out == ""
    assert message in err and hint in err and "Traceback" not in err


def test_rendering_what_cannot_run_lists_the_reasons(run):
    code, out, err = run("plan", "b300-tp8", "--render", "config", "--set", "enforce_eager=true")
    assert code == 3 and out == ""
    assert "not rendered" in err and "enforce_eager" in err


def test_a_rendered_file_goes_to_stdout_as_it_is(run):
    golden = Path(__file__).parent / "golden" / "command" / "b300-tp8.sh"
    code, out, _ = run("plan", "b300-tp8", "--render", "command")
    assert code == 0 and out == golden.read_text()


def test_rendered_files_are_written_where_asked(run, tmp_path):
    code, out, _ = run("plan", "gb300-tp8", "--render", "nodes", "--out", tmp_path / "deploy")
    assert code == 0
    assert [Path(line).name for line in out.split()] == ["gb300-tp8-node0.sh", "gb300-tp8-node1.sh"]
    assert (tmp_path / "deploy" / "gb300-tp8-node1.sh").is_file()


def test_overrides_reach_the_rendered_files(run):
    _, out, _ = run(
        "plan", "b300-tp8", "--render", "command", "--set", "max_num_seqs=4", "--model", "/data/Kimi-K3"
    )
    assert "--max-num-seqs 4" in out and "vllm serve /data/Kimi-K3" in out


def test_profiles_are_listed_and_shown_with_origins(run, data):
    code, out, _ = run("profiles", "list")
    assert code == 0 and all(name in out for name in names())
    code, out, _ = run("profiles", "show", "gb300-tp8", "--origin", "--set", "max_num_seqs=4")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "flag" in rows["max_num_seqs"]
    assert "gb300-tp8: serve.args.tensor_parallel_size" in rows["tensor_parallel_size"]
    assert "gb300-tp16: serve.args.kv_cache_dtype" in rows["kv_cache_dtype"]
    assert "default" in rows["port"]
    _, envelope = data("profiles", "show", "gb300-tp16")
    assert envelope["data"]["argv"][:3] == ["vllm", "serve", "moonshotai/Kimi-K3"]


def test_no_profile_claims_more_than_it_has_evidence_for():
    from k3ctl.profiles.loader import load

    for name in names():
        profile = load(name)
        assert profile.status != "validated" or profile.validation
        assert profile.status != "supported" or profile.evidence


@pytest.mark.parametrize(
    ("installed", "planned"), [("0.33.0+cpu", "0.33.0"), ("0.34.1", "0.34.1"), (None, "0.33.0")]
)
def test_the_installed_vllm_is_the_one_that_is_planned_for(data, monkeypatch, installed, planned):
    from importlib import metadata

    def version(name):
        if name != "vllm" or installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    code, envelope = data("plan", "b300-tp8", "--hardware", "B300:8")
    assert envelope["data"]["vllm"] == planned
    assert code == (3 if planned == "0.34.1" else 0)
