"""How an answer of the real vLLM is read; the answer itself is tested in ``test_against_vllm``."""

import json
import sys

import pytest

from k3ctl.errors import MachineError
from k3ctl.planning import vllm_check
from k3ctl.planning.plan import make

from .building import deployment


@pytest.fixture
def interpreter(tmp_path):
    """An interpreter that answers every request with the given text."""

    def interpreter(text, code=0):
        path = tmp_path / "python"
        path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint({text!r})\nsys.exit({code})\n"
        )
        path.chmod(0o755)
        return str(path)

    return interpreter


def answer(**changes):
    return json.dumps(
        {"id": "x", "error": None, "unsupported": None, "warnings": [], "resolved": {}} | changes
    )


def test_agreement_is_no_bug(interpreter):
    found = vllm_check.check(make(deployment("b300-tp8")), interpreter(answer()))
    assert found.disagreement is None and found.error is None


def test_a_different_reason_is_a_bug_of_ours(interpreter):
    found = vllm_check.check(make(deployment("b300-tp8")), interpreter(answer(unsupported="LoRA")))
    assert found.disagreement == "vLLM says: LoRA; our rules say: accepts it"


def test_a_refusal_that_we_predict_is_agreement(interpreter):
    eight = deployment("b300-tp8", {"speculative_config.num_speculative_tokens": 8})
    found = vllm_check.check(make(eight), interpreter(answer(unsupported="more than 7 speculative tokens")))
    assert found.disagreement is None and found.unsupported == found.expected


def test_a_refused_command_line_is_reported(interpreter):
    found = vllm_check.check(make(deployment("b300-tp8")), interpreter(answer(error="ValueError: no")))
    assert found.error == "ValueError: no"


@pytest.mark.parametrize(
    ("text", "code"), [("", 1), ("no json", 0), ("", 0)], ids=["fails", "chatters", "silent"]
)
def test_an_interpreter_without_vllm_is_one_clear_error(interpreter, text, code):
    with pytest.raises(MachineError, match="cannot be asked") as error:
        vllm_check.check(make(deployment("b300-tp8")), interpreter(text, code))
    assert "--python" in error.value.hint
