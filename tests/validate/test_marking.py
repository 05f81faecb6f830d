"""`status: validated` comes from a bundle that shows this very profile, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.bundle.parts import Surroundings
from k3ctl.cli import main
from k3ctl.deployment import CPU
from k3ctl.errors import UsageError
from k3ctl.profiles import loader
from k3ctl.validate import bundle, receipt, tiers
from k3ctl.validate.record import Outcome, Result
from tests.validate.results import FACTS, made, result

ROOT = Path(__file__).parent.parent.parent
ON_CPU = replace(
    FACTS,
    model="k3-tiny",
    gpu=CPU,
    gpus=1,
    parallel=(1, 1, 1),
    random_weights=True,
    platform="cpu",
    draft_tokens=3,
)
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "cpu-tiny.yaml"
    path.write_text((ROOT / "profiles" / "cpu-tiny.yaml").read_text())
    return path


def everything() -> list[Result]:
    """Every check of the two tiers passed, but for those that random weights cannot show."""
    skipped = receipt.OF_TRAINED
    return [
        result(
            c.name,
            Outcome.NOT_RUN if c.name in skipped else Outcome.PASSED,
            "random weights" if c.name in skipped else "fine",
        )
        for c in tiers.checks(receipt.TIERS)
    ]


def record(path: Path) -> dict[str, Any]:
    """What a run of the profile keeps."""
    data = loader.load(str(path)).model_dump(mode="json", by_alias=True)
    origins = {"port": ["flag", "--port"], "max_model_len": ["profile", "cpu-tiny: serve.args.max_model_len"]}
    return {"launch": {"profile": {"name": "cpu-tiny", "data": data}, "origins": origins}}


def validated(
    directory: Path,
    path: Path,
    results: list[Result] | None = None,
    facts: Any = ON_CPU,
    change: Change | None = None,
) -> Path:
    """A bundle of a run of the profile."""
    made(directory, everything() if results is None else results, facts=facts, seal=False)
    kept = record(path)
    if change is not None:
        change(kept)
    bundle.write(directory, {facts.key: Surroundings()}, environment={})
    (directory / "servers" / facts.key / "engine.json").write_text(json.dumps(kept))
    bundle.write(directory, {}, environment={})
    return directory


def mark(path: Path, directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = main(["profiles", "mark-validated", str(path), str(directory), "--json"])
    told = json.loads(capsys.readouterr().out)
    return code, (told["error"] or {}).get("reasons", [])


def test_a_bundle_of_the_profile_marks_it_and_nothing_else_of_the_file(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = profile.read_text()
    directory = validated(tmp_path / "v", profile)
    for _ in range(2):  # marking again replaces the receipt
        assert mark(profile, directory, capsys) == (0, [])
    found = loader.load(str(profile))
    assert found.status == "validated" and found.validation is not None
    assert found.validation.checks_passed == len(everything()) - len(receipt.OF_TRAINED)
    assert any("random weights" in text for text in found.validation.not_shown)
    kept = profile.read_text().partition("\nvalidation:")[0]
    assert kept.replace("status: validated", "status: supported") == before.rstrip()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_model_len: 1024", "max_model_len: 2048"),
        ("num_speculative_tokens: 3", "num_speculative_tokens: 2"),
        ("memory_gib: 3", "memory_gib: 4"),
    ],
)
def test_any_later_change_of_a_value_is_refused(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    directory = validated(tmp_path / "v", profile)
    assert mark(profile, directory, capsys)[0] == 0
    text = profile.read_text()
    profile.write_text(text.replace("notes:\n", "notes:\n  - One more.\n"))
    assert loader.load(str(profile)).status == "validated"
    profile.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match="changed since it was validated"):
        loader.load(str(profile))
    profile.write_text(
        text.replace(old, new).partition("validation:")[0].replace("status: validated", "status: untested")
    )
    code, reasons = mark(profile, directory, capsys)
    assert code == 1 and "before it was changed" in reasons[0]


def test_a_status_by_hand_is_refused(profile: Path) -> None:
    profile.write_text(profile.read_text().replace("status: supported", "status: validated"))
    with pytest.raises(UsageError, match="mark-validated"):
        loader.load(str(profile))


def _without(name: str) -> list[Result]:
    return [r for r in everything() if r.check != name]


def _with(name: str, outcome: Outcome) -> list[Result]:
    return [replace(r, outcome=outcome) if r.check == name else r for r in everything()]


@pytest.mark.parametrize(
    ("results", "word"),
    [
        (_without("canary.floods"), "missing"),
        (_without("features.needle.50"), "missing"),
        (_with("canary.acceptance", Outcome.FAILED), "is failed"),
        (_with("features.seeds", Outcome.VOID), "is void"),
        (_with("features.abort", Outcome.UNKNOWN), "is unknown"),
        (_with("features.context.longest", Outcome.NOT_RUN), "could not be run"),
        ([], "missing"),
    ],
)
def test_what_was_not_shown_marks_nothing(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], results: list[Result], word: str
) -> None:
    code, reasons = mark(profile, validated(tmp_path / "v", profile, results), capsys)
    assert code == 1 and any(word in reason for reason in reasons)
    assert loader.load(str(profile)).status == "supported"


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"gpu": "H200"}, "ran on H200"),
        ({"gpu": None}, "not known"),
        ({"vllm": "0.35.0"}, "vLLM 0.35.0"),
        ({"vllm": ""}, "not known"),
        ({"random_weights": False}, "canary.answers could not be run"),
    ],
)
def test_other_hardware_and_versions_mark_nothing(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], word: str
) -> None:
    code, reasons = mark(profile, validated(tmp_path / "v", profile, facts=replace(ON_CPU, **facts)), capsys)
    assert code == 1 and any(word in reason for reason in reasons)


def _origin(name: str, source: str) -> Change:
    return lambda kept: kept["launch"]["origins"].update({name: [source, f"--set {name}"]})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_origin("max_model_len", "flag"), "overridden"),
        (_origin("speculative_config.num_speculative_tokens", "env"), "overridden"),
        (_origin("env.VLLM_PLUGINS", "env"), "overridden"),
        (lambda kept: kept.update(launch={}), "not known"),
        (lambda kept: kept["launch"]["profile"].update(name="other"), "ran the profile `other`"),
        (lambda kept: kept["launch"]["profile"]["data"].update(goal="latency"), "before it was changed"),
    ],
)
def test_a_run_of_something_else_marks_nothing(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, word: str
) -> None:
    code, reasons = mark(profile, validated(tmp_path / "v", profile, change=change), capsys)
    assert code == 1 and any(word in reason for reason in reasons)


def test_where_it_listens_is_no_override(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = validated(tmp_path / "v", profile, change=_origin("host", "flag"))
    assert mark(profile, directory, capsys)[0] == 0


def test_a_bundle_that_does_not_verify_marks_nothing(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = validated(tmp_path / "v", profile)
    path = directory / "raw" / "results.jsonl"
    path.write_text(path.read_text().replace("fine", "good", 1))
    code, reasons = mark(profile, directory, capsys)
    assert code == 1 and any("files" in reason for reason in reasons)


def test_every_essential_check_exists() -> None:
    known = {check.name for check in tiers.checks(receipt.TIERS)}
    assert {*receipt.ESSENTIAL, *receipt.OF_TRAINED} <= known
