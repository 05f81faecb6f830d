"""Scores, intervals, floors, and what may stand beside them; the sets; the harness's files, with a stand-in for it."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.errors import K3Error, MachineError, UsageError
from k3ctl.facts import published
from k3ctl.facts.published import Accuracy
from k3ctl.server.client import Client
from k3ctl.validate import harness, runner, scores
from k3ctl.validate.checks import quality
from k3ctl.validate.facts import Facts
from k3ctl.validate.harness import Evaluation
from k3ctl.validate.record import Outcome
from k3ctl.validate.scores import Score
from k3ctl.validate.session import Session
from k3ctl.validate.sets import arithmetic, needles
from tests.knownbad import scripted

FIXTURES = Path(__file__).parent.parent / "fixtures" / "quality"
SETTINGS = {"questions": 100, "num_fewshot": 5, "endpoint": "chat"}


def score(right: int, of: int, empty: int = 0, name: str = "answer") -> Score:
    return Score(name, (1.0,) * right + (0.0,) * (of - right), empty)


def entry(value: float, **settings: Any) -> Accuracy:
    told = {**SETTINGS, **settings}
    return Accuracy("X", "set", "a paper", "2026", value, None, 100, "answer", told)


@pytest.mark.parametrize(
    ("right", "of", "floor", "outcome"),
    [
        (100, 100, 0.85, Outcome.PASSED),
        (93, 100, 0.85, Outcome.PASSED),
        (88, 100, 0.85, Outcome.UNKNOWN),
        (80, 100, 0.85, Outcome.UNKNOWN),
        (70, 100, 0.85, Outcome.FAILED),
        (0, 100, 0.85, Outcome.FAILED),
        (5, 5, 0.85, Outcome.UNKNOWN),  # five right answers tell little
        (100, 100, None, Outcome.UNKNOWN),
        (0, 0, 0.85, Outcome.UNKNOWN),
    ],
)
def test_a_floor_is_met_or_missed_by_the_whole_interval(
    right: int, of: int, floor: float, outcome: Outcome
) -> None:
    assert scores.judge([score(right, of)], floor, SETTINGS, ()).outcome is outcome


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.data())
def test_more_right_answers_never_make_it_worse(count: int, data: Any) -> None:
    right = data.draw(st.integers(0, count - 1))
    order = [Outcome.FAILED, Outcome.UNKNOWN, Outcome.PASSED]
    less, more = (scores.judge([score(n, count)], 0.8, SETTINGS, ()).outcome for n in (right, right + 1))
    assert order.index(less) <= order.index(more)
    low, high = score(right, count).interval
    assert 0 <= low <= right / count <= high <= 1
    wider = score(right * 4, count * 4).interval
    assert wider[1] - wider[0] < high - low


def test_partial_points_have_an_interval_of_their_own() -> None:
    partial = Score("likeness", (0.2, 0.9, 0.7, 0.4))
    low, high = partial.interval
    assert not partial.whole and 0 <= low < partial.mean < high <= 1
    assert Score("likeness", (0.5,)).interval == (0.0, 1.0)
    assert partial.json()["interval"] == "normal"


def test_many_empty_answers_say_more_of_the_length_limit() -> None:
    assert scores.judge([score(95, 100, 1)], 0.85, SETTINGS, ()).outcome is Outcome.PASSED
    said = scores.judge([score(60, 100, 40)], 0.85, SETTINGS, ())
    assert said.outcome is Outcome.UNKNOWN and "max_gen_toks" in said.statement


def test_a_published_score_is_compared_under_the_same_settings_only() -> None:
    same, higher = entry(0.9), entry(0.999)
    assert scores.judge([score(92, 100)], None, SETTINGS, [same]).outcome is Outcome.PASSED
    assert scores.judge([score(92, 100)], None, SETTINGS, [higher]).outcome is Outcome.FAILED
    for name in SETTINGS:
        for other in (None, "another"):
            said = scores.judge([score(92, 100)], None, SETTINGS, [entry(0.999, **{name: other})])
            assert (
                said.outcome is Outcome.UNKNOWN
                and name in said.statement
                and "not compared" in said.statement
            )
        known_less = {key: value for key, value in SETTINGS.items() if key != name}
        assert scores.judge([score(92, 100)], None, known_less, [higher]).outcome is Outcome.UNKNOWN
    assert not scores.beside(SETTINGS, score(92, 100), [replace(same, filter="strict")])
    (row,) = scores.beside(SETTINGS, score(92, 100), [replace(same, filter=None)])
    assert row["not_compared"] == ["the source does not state filter"]


def test_published_scores_agree_with_their_own_counts_and_name_every_setting() -> None:
    found = published.accuracies()
    assert {one.set for one in found} == {"gsm8k"} and len({one.id for one in found}) == len(found) >= 5
    for one in found:
        assert "2026" in one.date and len(one.source) > 10
        if one.right is not None:
            assert math.isclose(one.right / one.questions, one.score, abs_tol=5e-5)
        assert set(one.settings) == set(found[0].settings) and one.settings["questions"] == one.questions
    assert published.accuracy("nothing") == ()


# sets


def evaluated(question: str) -> int:
    """The answer of an arithmetic question, worked out from its words."""
    text = re.search(r"Compute (.*?)\. End", question)[1]  # type: ignore[index]
    if found := re.fullmatch(r"the remainder of (\d+) divided by (\d+)", text):
        return int(found[1]) % int(found[2])
    assert re.fullmatch(r"[\d +\-*()]+", text)
    return int(eval(text))


@pytest.mark.parametrize("seed", [1, 2, quality.SEED])
def test_arithmetic_answers_are_right_and_the_set_is_the_same_for_a_seed(seed: int) -> None:
    rows = arithmetic.questions(60, seed)
    assert rows == arithmetic.questions(60, seed) and rows[:20] == arithmetic.questions(20, seed)
    assert all(evaluated(row["question"]) == int(row["answer"]) for row in rows)
    assert len({row["id"] for row in rows}) == 60 and len(Counter(row["kind"] for row in rows)) == 5
    assert rows != arithmetic.questions(60, seed + 1)


@pytest.mark.parametrize(("count", "sentences"), [(24, 60), (7, 24), (12, 400)])
def test_needles_are_answered_by_the_text_alone_and_lie_at_all_depths(count: int, sentences: int) -> None:
    rows = needles.questions(count, 5, sentences)
    assert rows == needles.questions(count, 5, sentences)
    for row in rows:
        asked = re.search(r"codes of (\w+)\. Which is the (\w+) of", row["question"])
        assert asked
        codes = re.findall(rf"The code of {asked[1]} is (\d+)\.", row["question"])
        assert len(codes) == needles.TOLD
        assert codes[needles.ORDINALS.index(asked[2])] == row["answer"]
        assert len(re.findall(r"The code of", row["question"])) == needles.TOLD * len(needles.NAMES)
        assert 0 <= row["depth"] <= 1
    if count == 24:
        assert {row["kind"] for row in rows} == set(needles.ORDINALS)
        assert min(row["depth"] for row in rows) < 0.3 and max(row["depth"] for row in rows) > 0.7


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("Answer: 42", "42"),
        ("so 6*7\nAnswer: 42", "42"),
        ("Answer: 1\nno, wait\nAnswer: **42**", "42"),
        ("**Answer:** 42", "42"),
        ("Answer: $42$", "42"),
        ("Answer: \\(42\\)", "42"),
        ("Answer: \\boxed{42}", "42"),
        ("answer 42.", "42"),
        ("Answer: -42", "-42"),
        ("Answer: 4,242", "4,242"),
        ("42", None),
        ("The answer is unknown", None),
    ],
)
@pytest.mark.parametrize("name", ["arithmetic", "needles"])
def test_the_last_answer_counts_however_it_is_set(name: str, said: str, read: str | None) -> None:
    task = yaml.safe_load((Path(harness.__file__).parent / "sets" / "tasks" / f"{name}.yaml").read_text())
    found = re.findall(task["filter_list"][0]["filter"][0]["regex_pattern"], said)
    assert (found[-1] if found else None) == read


def test_likeness_counts_only_behind_the_key() -> None:
    from k3ctl.validate.sets.tasks import mrcr

    (row,) = [json.loads(line) for line in (FIXTURES / "mrcr.jsonl").read_text().splitlines()]
    assert "user: Write a line about rivers." in mrcr.text(row)
    assert mrcr.text(row) == mrcr.text({**row, "prompt": json.loads(row["prompt"])})
    key = row["random_string_to_prepend"]
    points = [
        mrcr.points(row, [said])["likeness"]
        for said in (row["answer"], key + "The river.", "The river is cold.")
    ]
    assert points[0] == 1.0 and 0 < points[1] < 1 and points[2] == 0.0


# the harness, with a stand-in for it

STAND_IN = """#!{python}
import json, os, sys, yaml
from pathlib import Path
assert sys.argv[1:3] == ["run", "--config"]
config = yaml.safe_load(Path(sys.argv[3]).read_text())
Path({seen!r}).write_text(json.dumps({{"config": config, "env": dict(os.environ)}}))
{act}
(name,) = config["tasks"]
task = yaml.safe_load((Path(config["include_path"]) / (name[3:] + ".yaml")).read_text().replace("!function", ""))
lines = Path(task["dataset_kwargs"]["data_files"]["test"]).read_text().splitlines()
out = Path(config["output_path"]) / "m"
out.mkdir(parents=True)
(out / "results_1.json").write_text(json.dumps({{"lm_eval_version": "0.4.13", "versions": {{name: 3.0}}}}))
point = {{"metrics": ["exact_match"], "exact_match": {right}}}
rows = [
    {{"doc_id": i, "target": "t", "resps": [[{said!r}]], "filter": f, **point}}
    for f in ("strict-match", "flexible-extract") for i, _ in enumerate(lines)
]
(out / f"samples_{{name}}_1.jsonl").write_text("".join(json.dumps(r) + "\\n" for r in rows[::-1]))
"""


class Stand:
    """A program in place of the harness."""

    def __init__(self, folder: Path, *, act: str = "", said: str = "Answer: 1", right: str = "1.0") -> None:
        self.seen, self.program = folder / "seen.json", folder / "bin" / "lm_eval"
        (folder / "lib/python3/site-packages/lm_eval/tasks/gsm8k").mkdir(parents=True, exist_ok=True)
        self.program.parent.mkdir(exist_ok=True)
        text = STAND_IN.format(python=sys.executable, seen=str(self.seen), act=act, said=said, right=right)
        self.program.write_text(text)
        self.program.chmod(0o755)

    def asked(self) -> dict[str, Any]:
        return dict(json.loads(self.seen.read_text()))


def evaluated_by(stand: Stand, limit_s: float = 60, **changes: Any) -> harness.Evaluated:
    data = {"test": FIXTURES / "gsm8k.jsonl", "train": FIXTURES / "gsm8k-train.jsonl"}
    wanted = Evaluation("gsm8k", data, "http://127.0.0.1:9", "k3", 4, 512, "gsm8k/gsm8k.yaml", 5)
    return harness.run(stand.program, replace(wanted, **changes), limit_s, "secret")


def test_the_harness_gets_the_files_the_server_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    stand = Stand(tmp_path)
    found = evaluated_by(stand, limit=2, generation={"reasoning_effort": "low"})
    assert [(one.filter, one.points) for one in found.scores] == [
        ("flexible-extract", (1.0,) * 3),
        ("strict-match", (1.0,) * 3),
    ]
    config, env = stand.asked()["config"], stand.asked()["env"]
    assert config["model_args"]["base_url"] == "http://127.0.0.1:9/v1/chat/completions"
    assert (config["num_fewshot"], config["limit"], config["apply_chat_template"]) == (5, 2, True)
    assert config["gen_kwargs"] == {"max_gen_toks": 512, "reasoning_effort": "low"}
    assert env["HF_HUB_OFFLINE"] == env["HF_DATASETS_OFFLINE"] == "1" and env["OPENAI_API_KEY"] == "secret"
    assert not {"HTTPS_PROXY", "PYTHONPATH"} & set(env)
    assert "secret" not in json.dumps(config)


@pytest.mark.parametrize(
    ("act", "word"),
    [
        ("sys.exit('no such model')", "status 1"),
        ("sys.exit(0)", "no results"),
        ("import time; time.sleep(60)", "stopped"),
    ],
)
def test_a_harness_that_fails_hangs_or_leaves_nothing_is_an_error_with_its_last_words(
    tmp_path: Path, act: str, word: str
) -> None:
    stand = Stand(tmp_path, act=act)
    with pytest.raises(K3Error) as error:
        evaluated_by(stand, limit_s=3 if "sleep" in act else 60)
    assert word in error.value.message
    assert ("no such model" in act) == any("no such model" in reason for reason in error.value.reasons)


def test_data_files_are_of_one_known_kind_and_there(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    for data in ({"test": tmp_path / "x.txt"}, {"test": tmp_path / "x.json", "train": tmp_path / "x.csv"}):
        with pytest.raises(UsageError, match="one kind"):
            evaluated_by(stand, data=data)
    with pytest.raises(UsageError, match="cannot be read"):
        harness.digest(tmp_path / "missing.jsonl")


def test_where_the_harness_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(tmp_path)
    assert harness.find(str(stand.program)) == harness.find(str(tmp_path)) == stand.program
    with pytest.raises(UsageError, match="no lm_eval program"):
        harness.find(str(tmp_path / "nowhere"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MachineError, match="not installed") as error:
        harness.find(None)
    assert error.value.hint and "setup-quality" in error.value.hint
    monkeypatch.setenv("PATH", str(stand.program.parent))
    assert harness.find(None) == stand.program


@pytest.mark.parametrize(
    "row", [{}, {"filter": "a"}, {"filter": "a", "doc_id": 0, "metrics": [], "resps": []}]
)
def test_samples_of_another_shape_are_an_error(row: dict[str, Any]) -> None:
    with pytest.raises(K3Error, match="cannot be read"):
        harness.read_scores([row])


# the checks


@pytest.fixture
def session() -> Any:
    with scripted.serve() as server:
        client = Client(server.url)
        yield Session(client, Facts(model="toy", platform="cuda", max_model_len=32_768))
        client.close()


CHECKS = {check.name: check for check in quality.CHECKS}


def check(session: Session, name: str, stand: Stand, **options: Any) -> Any:
    session.options = {"lm_eval": str(stand.program), **options}
    return runner.one(session, CHECKS[name])


def test_a_score_below_its_floor_fails_and_a_pass_needs_the_witness(session: Session, tmp_path: Path) -> None:
    assert check(session, "quality.arithmetic", Stand(tmp_path, right="0.0")).outcome is Outcome.FAILED
    said = check(session, "quality.arithmetic", Stand(tmp_path))  # the stand-in asks the server nothing
    assert said.outcome is not Outcome.PASSED and "at least 0.85" in said.statement


def test_gsm8k_is_told_beside_published_scores_with_what_differs(session: Session, tmp_path: Path) -> None:
    files = {"gsm8k": FIXTURES / "gsm8k.jsonl", "gsm8k_train": FIXTURES / "gsm8k-train.jsonl"}
    said = check(session, "quality.gsm8k", Stand(tmp_path), **files)
    assert said.outcome is Outcome.UNKNOWN and "not compared" in said.statement
    flexible = said.evidence["published"]["flexible-extract"]
    assert {row["id"] for row in flexible} >= {"A1-tp8", "A2-flexible"} and "A2-strict" not in {
        row["id"] for row in flexible
    }
    assert all(any("questions is 3" in reason for reason in row["not_compared"]) for row in flexible)
    assert said.evidence["settings"]["num_fewshot"] == 5
    assert said.evidence["scores"][0]["filter"] == "flexible-extract"
    without = check(session, "quality.gsm8k", Stand(tmp_path), gsm8k=files["gsm8k"])
    assert without.evidence["settings"]["num_fewshot"] == 0
    floor = check(session, "quality.gsm8k", Stand(tmp_path, right="0.0"), gsm8k_at_least="0.9", **files)
    assert floor.outcome is Outcome.FAILED and floor.evidence["wrong"]


def test_what_cannot_be_tried_is_not_run_with_the_option_to_give(session: Session, tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    for name in ("gsm8k", "aime25", "mrcr"):
        said = check(session, f"quality.{name}", stand)
        assert said.outcome is Outcome.NOT_RUN and f"--option {name}=FILE" in said.statement
    session.facts = replace(session.facts, acceptance="synthetic")
    assert check(session, "quality.arithmetic", stand).outcome is Outcome.NOT_RUN


@pytest.mark.parametrize("act", ["sys.exit('boom')", "sys.exit(0)"])
def test_a_failed_harness_is_unknown_never_a_score(session: Session, tmp_path: Path, act: str) -> None:
    said = check(session, "quality.arithmetic", Stand(tmp_path, act=act))
    assert said.outcome is Outcome.UNKNOWN


def test_random_weights_have_no_score_unless_one_is_asked_for(session: Session, tmp_path: Path) -> None:
    session.facts = replace(session.facts, random_weights=True)
    stand = Stand(tmp_path, right="0.0")
    assert check(session, "quality.arithmetic", stand).outcome is Outcome.UNKNOWN
    assert check(session, "quality.arithmetic", stand, at_least="0.5").outcome is Outcome.FAILED


@pytest.mark.parametrize("name", ["questions", "limit", "max_gen_toks", "at_least", "limit_s", "concurrency"])
def test_options_that_are_no_numbers_are_refused(session: Session, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        check(session, "quality.arithmetic", Stand(tmp_path), **{name: "many"})


def test_the_extra_of_the_project_is_what_the_lock_pins() -> None:
    root = Path(__file__).parent.parent.parent
    lock = (root / "requirements" / "quality.lock").read_text()
    assert 'quality = ["lm_eval[api]==0.4.13"]' in (root / "pyproject.toml").read_text()
    assert "lm_eval==0.4.13" in lock.replace("lm-eval", "lm_eval")
