import pytest

from k3ctl.errors import UsageError
from k3ctl.profiles import loader
from k3ctl.profiles.overrides import parse_set
from k3ctl.profiles.resolve import MODEL_DIR, Origin, resolve
from k3ctl.profiles.vllm_args import argv, option


def tiny(overrides=None, environ=None):
    return resolve(loader.load("cpu-tiny"), overrides, environ)


def test_every_value_has_an_origin():
    resolved = tiny({"max_num_seqs": "4", "env.VLLM_HOST_IP": "127.0.0.2"})
    assert resolved.origins["max_num_seqs"].source == "flag"
    assert resolved.origins["env.VLLM_HOST_IP"].source == "flag"
    assert resolved.origins["load_format"] == Origin("profile", "cpu-tiny: serve.args.load_format")
    assert resolved.origins["port"] == Origin("default", "k3ctl")
    leaves = {f"env.{name}" for name in resolved.env} | {
        f"{name}.{field}" if isinstance(value, dict) else name
        for name, value in resolved.args.items()
        for field in (value if isinstance(value, dict) else [""])
    }
    assert leaves == set(resolved.origins)


def test_a_flag_beats_the_environment_and_that_beats_the_profile():
    environ = {"K3CTL_SET": "max_num_seqs=4 max_model_len=2K", "OMP_NUM_THREADS": "7"}
    resolved = tiny({"max_num_seqs": "2"}, environ)
    assert resolved.args["max_num_seqs"] == 2
    assert (resolved.args["max_model_len"], resolved.origins["max_model_len"].source) == (2048, "env")
    assert (resolved.env["OMP_NUM_THREADS"], resolved.origins["env.OMP_NUM_THREADS"].source) == ("7", "env")


def test_a_field_override_keeps_the_other_fields():
    resolved = tiny({"speculative_config.num_speculative_tokens": "7"})
    assert resolved.args["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 7}


def test_a_whole_json_argument_replaces_the_profile():
    resolved = tiny({"speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}'})
    assert resolved.args["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 2}
    assert {key for key in resolved.origins if key.startswith("speculative_config")} == {
        "speculative_config.method",
        "speculative_config.num_speculative_tokens",
    }


def test_none_removes_an_argument():
    resolved = tiny({"speculative_config": "none"})
    assert "speculative_config" not in resolved.args
    assert "--speculative-config" not in argv(resolved)


def test_resolving_never_changes_the_profile():
    profile = loader.load("cpu-tiny")
    before = profile.model_dump()
    resolve(profile, {"structured_outputs_config.backend": "guidance"})
    assert profile.model_dump() == before


@pytest.mark.parametrize("key", ["tp", "-tp", "tensor-parallel-size", "--tensor-parallel-size"])
def test_short_and_dashed_names_reach_the_same_argument(key):
    assert tiny({key: "2"}).args["tensor_parallel_size"] == 2


@pytest.mark.parametrize(
    ("entries", "both"),
    [
        (["tp=4", "tensor_parallel_size=8"], ("tp=4", "tensor_parallel_size=8")),
        (
            ["speculative_config=none", "speculative_config.method=mtp"],
            ("speculative_config", "speculative_config.m"),
        ),
        (
            ["attention_backend=X", "attention_config.backend=Y"],
            ("attention_backend", "attention_config.backend"),
        ),
        (["spec_tokens=3", 'speculative_config={"a":1}'], ("spec_tokens", "speculative_config")),
    ],
)
def test_conflicting_overrides_name_both(entries, both):
    with pytest.raises(UsageError) as error:
        parse_set(entries)
    assert all(name in error.value.message for name in both)


def test_the_same_override_twice_is_no_conflict():
    assert parse_set(["tp=2", "tensor-parallel-size=2"]) == {"tensor_parallel_size": "2"}


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("max_num_sqes", "4", "unknown vLLM argument `max_num_sqes`"),
        ("max_num_seqs", "16k", "takes a plain integer"),
        ("max_num_batched_tokens", "1.5K", "decimals do not go with `K`"),
        ("speculative_config.num_spec", "1", "unknown field of `speculative_config`"),
        ("max_model_len.x", "1", "has no fields"),
        ("additional_config", "{not json", "not valid JSON"),
        ("env.VLLM_PLUGIN", "x", "unknown environment variable"),
        ("node_rank", "1", "cannot be set by hand"),
        ("enforce_eager", "maybe", "takes true or false"),
    ],
)
def test_a_bad_override_is_one_clear_error(key, text, message):
    with pytest.raises(UsageError) as error:
        tiny({key: text})
    assert message in error.value.message


def test_a_generated_model_is_filled_in_later():
    resolved = tiny()
    assert argv(resolved)[0] == MODEL_DIR and resolved.needs_generated_model
    filled = resolved.with_model_path("/models/tiny")
    assert argv(filled)[0] == "/models/tiny" and not filled.needs_generated_model


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("disable_log_stats", False, []),
        ("disable_log_stats", True, ["--disable-log-stats"]),
        ("cudagraph_capture_sizes", [8, 16], ["--cudagraph-capture-sizes", "8", "16"]),
        ("attention_config", {"backend": "X"}, ["--attention-config", '{"backend":"X"}']),
        ("max_model_len", "auto", ["--max-model-len", "auto"]),
    ],
)
def test_an_argument_renders_as_vllm_takes_it(name, value, words):
    assert option(name, value) == words
