import textwrap

import pytest

from k3ctl.errors import UsageError
from k3ctl.profiles import loader

MINIMAL = """
schema: 1
name: {name}
summary: A test profile
status: untested
requires: {{gpu: [B300], gpus: 8}}
model: {{id: moonshotai/Kimi-K3, served_name: kimi-k3}}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a profile into a user directory that K3CTL_PROFILES names."""
    monkeypatch.setenv("K3CTL_PROFILES", str(tmp_path))

    def write(name, extra="", base=MINIMAL):
        path = tmp_path / f"{name}.yaml"
        path.write_text(base.format(name=name) + textwrap.dedent(extra))
        return path

    return write


@pytest.mark.parametrize("name", loader.names())
def test_every_shipped_profile_loads(name):
    assert loader.load(name).name == name


def test_a_user_directory_adds_profiles(write):
    write("mine")
    assert "mine" in loader.names()
    assert loader.load("mine").requires.gpus == 8


def test_a_profile_can_be_given_as_a_file(write):
    assert loader.load(str(write("mine"))).name == "mine"


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(UsageError) as error:
        loader.load("cpu-tinny")
    assert error.value.hint == "did you mean `cpu-tiny`?"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("sumary: x", "unknown key `sumary`; did you mean `summary`?"),
        ("decode: {bakend: auto}", "unknown key `decode.bakend`; did you mean `backend`?"),
        ("serve: {arg: {}}", "unknown key `serve.arg`; did you mean `args`?"),
        ("serve: {args: {max_num_batchd_tokens: 1}}", "unknown vLLM argument `max_num_batchd_tokens`"),
        (
            "serve: {args: {max_num_seqs: 8}}",
            "`serve.args.max_num_seqs` is set through `decode.max_num_seqs`",
        ),
        (
            "serve: {args: {tensor_parallel_size: 8k}}",
            "`tensor_parallel_size` takes a plain integer, got `8k`",
        ),
        (
            "serve: {args: {tensor_parallel_size: true}}",
            "`tensor_parallel_size` takes a plain integer, got `True`",
        ),
        ("serve: {args: {moe_backend: marlinn}}", "unknown value of `moe_backend` `marlinn`"),
        ("serve: {args: {attention_config: {backnd: x}}}", "unknown field of `attention_config` `backnd`"),
        ("serve: {env: {VLLM_USE_V2_RUNNER: 1}}", "unknown environment variable `VLLM_USE_V2_RUNNER`"),
        ("decode: {backend: fast}", "`decode.backend`"),
        ("decode: {speculator: {method: dspark}}", "needs `method` and `num_speculative_tokens`"),
        ("status: supported", "`status: supported` needs `evidence`"),
        ("status: validated", "written together, by `k3ctl profiles mark-validated`"),
        ("status: verified", "`status`"),
    ],
)
def test_a_wrong_key_or_value_is_named(write, extra, message):
    write("mine", extra)
    with pytest.raises(UsageError) as error:
        loader.load("mine")
    assert message in str(error.value)


def test_all_wrong_keys_are_named_at_once(write):
    write("mine", "one: 1\ntwo: 2\n")
    with pytest.raises(UsageError) as error:
        loader.load("mine")
    text = " ".join([error.value.message, *error.value.reasons])
    assert "`one`" in text and "`two`" in text


@pytest.mark.parametrize("text", ["a: [", "just text", "- 1\n- 2\n"], ids=["broken", "text", "list"])
def test_a_file_that_is_no_profile_is_one_clear_error(write, text):
    path = write("mine", base="")
    path.write_text(text)
    with pytest.raises(UsageError, match=r"mine\.yaml"):
        loader.load(str(path))


def test_extends_merges_mappings_and_null_removes(write):
    write("base", "serve: {args: {tensor_parallel_size: 8, dtype: bfloat16}, env: {A: 1}}")
    write("child", "extends: base\nserve: {args: {tensor_parallel_size: 16, dtype: null}}")
    child = loader.load("child")
    assert child.serve.args == {"tensor_parallel_size": 16}
    assert child.serve.env == {"A": "1"}
    assert child.stated_in("serve.env.A") == "base"
    assert child.stated_in("serve.args.tensor_parallel_size") == "child"


def test_evidence_is_not_inherited(write):
    write("base", "evidence: [{what: ran, by: someone, when: 2026-09}]")
    write("child", "extends: base")
    assert loader.load("child").evidence == ()


def test_extends_goes_one_level_deep(write):
    write("base")
    write("child", "extends: base")
    write("grandchild", "extends: child")
    with pytest.raises(UsageError, match="itself extends `base`"):
        loader.load("grandchild")


def test_a_name_must_match_its_file(write):
    path = write("mine")
    with pytest.raises(UsageError, match="differs from the file name"):
        loader.load(str(path.rename(path.with_name("other.yaml"))))


@pytest.mark.parametrize("name", [name for name in loader.names() if name != "cpu-tiny"])
def test_a_profile_requires_the_gpus_that_its_parallel_sizes_take(name):
    profile = loader.load(name)
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    taken = 1
    for size in sizes:
        taken *= profile.serve.args.get(size, 1)
    assert profile.requires.gpus == taken
    assert profile.requires.gpus % profile.requires.nodes == 0


def test_pairs_point_at_each_other():
    for name in loader.names():
        partner = loader.load(name).pairs_with
        assert partner is None or loader.load(partner).pairs_with == name


def test_a_broken_profile_hides_only_itself(write):
    write("mine")
    write("broken", "sumary: x")
    found, problems = loader.load_readable()
    assert "mine" in {profile.name for profile in found}
    assert len(problems) == 1 and "broken.yaml" in problems[0] and "`sumary`" in problems[0]


def test_a_profile_of_a_published_command_says_what_it_adds() -> None:
    """Readers take "published command" at its word: plugins that it loads besides are named in its summary."""
    for name in loader.names():
        profile = loader.load(name)
        if "published" in profile.summary.lower() and "command" in profile.summary.lower():
            assert "VLLM_PLUGINS" not in profile.serve.env or "plugins" in profile.summary, name
        assert "as it was written" not in profile.summary, name
