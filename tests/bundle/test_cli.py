"""The ``bundle`` and ``gate`` commands as scripts see them: exit codes, streams, the JSON envelope."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3ctl.cli import main
from k3ctl.deployment import Deployment
from tests.loadtest import results

Make = Callable[..., Path]


@pytest.fixture
def k3ctl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``k3ctl(*argv)`` → exit code, stdout, stderr."""

    def run(*argv: object) -> tuple[int, str, str]:
        code = main([str(part) for part in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_verify_says_what_it_checked(k3ctl: Any, make_bundle: Make) -> None:
    code, out, err = k3ctl("bundle", "verify", make_bundle())
    assert (code, err) == (0, "")
    for word in ("files", "statement", "manifest", "summary", "recomputed from raw/"):
        assert word in out


def test_verify_fails_with_exit_1_and_names_the_file(k3ctl: Any, make_bundle: Make) -> None:
    directory = make_bundle()
    (directory / "command.txt").write_text("guidellm run --something else\n")
    code, out, _ = k3ctl("bundle", "verify", directory, "--json")
    assert code == 1
    data = json.loads(out)["data"]
    assert data["passed"] is False
    assert [check["detail"] for check in data["checks"] if not check["ok"]] == ["command.txt was changed"]


@pytest.mark.parametrize("argv", [("bundle", "verify"), ("bundle", "report"), ("gate", ".")], ids=" ".join)
def test_something_that_is_no_bundle_is_a_usage_error(
    k3ctl: Any, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    code, out, err = k3ctl(*argv, tmp_path / "nowhere")
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")


def test_pack_verify_and_report_work_on_the_archive(k3ctl: Any, make_bundle: Make, tmp_path: Path) -> None:
    archive = tmp_path / "r.k3b.tar.gz"
    assert k3ctl("bundle", "pack", make_bundle(), "--out", archive)[0] == 0
    assert k3ctl("bundle", "verify", archive)[0] == 0
    code, out, _ = k3ctl("bundle", "report", archive)
    assert code == 0
    assert out.startswith("### 8k1k on moonshotai/Kimi-K3")


def test_a_report_is_never_written_over_a_file(k3ctl: Any, make_bundle: Make, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert k3ctl("bundle", "report", make_bundle(), "--format", "html", "--out", page)[0] == 0
    before = page.read_text()
    code, _, err = k3ctl("bundle", "report", make_bundle(name="b"), "--format", "html", "--out", page)
    assert code == 2
    assert "exists already" in err
    assert page.read_text() == before


def test_gate_passes_and_fails_by_exit_code(k3ctl: Any, make_bundle: Make) -> None:
    good = make_bundle(name="good")
    slow = make_bundle("guidellm-8k1k-consistent-c4.json", name="slow")
    assert k3ctl("gate", good, slow)[0] == 0
    slower = results.make(slow.parent / "slower")
    report = json.loads((slower / "raw" / "guidellm.json").read_text())
    metrics = report["benchmarks"][0]["metrics"]
    metrics["time_to_first_token_ms"]["successful"].update(mean=900.0, min=890.0, max=910.0, std_dev=9.0)
    (slower / "raw" / "guidellm.json").write_text(json.dumps(report))
    from k3ctl.bundle.parts import Surroundings
    from k3ctl.bundle.write import write

    write(slower, Surroundings(), environment={})
    code, out, _ = k3ctl("gate", good, slower, "--json")
    assert code == 1
    outcomes = {v["metric"]: v["outcome"] for v in json.loads(out)["data"]["verdicts"]}
    assert outcomes["ttft_ms"] == "regression"
    assert outcomes["output_tok_s"] in ("same", "undecided")


def test_gate_refuses_a_bundle_that_does_not_verify(k3ctl: Any, make_bundle: Make) -> None:
    good, bad = make_bundle(name="good"), make_bundle(name="bad")
    (bad / "summary.json").write_text("{}")
    code, _, err = k3ctl("gate", good, bad)
    assert code == 1
    assert "does not verify" in err


def test_gate_says_when_nothing_is_comparable(k3ctl: Any, make_bundle: Make) -> None:
    from dataclasses import replace

    other = replace(results.TARGET, deployment=Deployment(gpu="GB300", gpus=16, tensor_parallel_size=16))
    code, _, err = k3ctl("gate", make_bundle(name="a"), make_bundle(name="b", target=other))
    assert code == 1
    assert "nothing in the two bundles is comparable" in err
    assert "GPU: GB300 here, B300 there" in err


def test_what_was_changed_on_purpose_is_named_and_told(k3ctl: Any, make_bundle: Make) -> None:
    from dataclasses import replace

    newer = dict(results.TARGET.launch or {})
    newer["versions"] = {**newer["versions"], "vllm": "0.34.0"}
    before = make_bundle(name="a")
    after = make_bundle(name="b", target=replace(results.TARGET, launch=newer))
    code, _, err = k3ctl("gate", before, after)
    assert code == 1
    assert "versions: `vllm` 0.34.0 here, 0.33.0 there" in err
    assert "--vary CONDITION" in err
    code, out, _ = k3ctl("gate", before, after, "--vary", "versions")
    assert code == 0
    assert "changed on purpose: versions" in out
    code, _, err = k3ctl("gate", before, after, "--vary", "version")
    assert code == 2
    assert "versions" in err
    assert k3ctl("gate", before, after, "--vary", "path")[0] == 2


def test_a_negative_threshold_is_a_usage_error(k3ctl: Any, make_bundle: Make) -> None:
    assert k3ctl("gate", make_bundle(name="a"), make_bundle(name="b"), "--threshold", "-1")[0] == 2
