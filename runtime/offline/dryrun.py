"""Build vLLM's own engine configuration for command lines, without a GPU and without weights.

``python -m runtime.offline.dryrun`` reads one JSON object from stdin and answers one JSON line per case:

    {"gpu": {"capability": [10, 3], "name": "NVIDIA GB300", "memory_bytes": 298013687808, "count": 4},
     "cases": [{"id": "a", "argv": ["moonshotai/Kimi-K3", "--tensor-parallel-size", "16"], "env": {}}]}

Each answer has ``error`` (vLLM refuses the command line: argument parsing or configuration), ``unsupported``
(the first reason for which vLLM's specialized decode refuses, null when it accepts), ``resolved`` (the values
vLLM decided on) and ``warnings``. A model that is not a local directory is stood in for by a configuration
with Kimi K3's sizes. Weights, memory, kernels and links are not checked.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from runtime.offline import stub_cuda
from runtime.offline.standin import drafter_config, model_config

QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": ""}
NOT_HERE = ("VLLM_TARGET_DEVICE", "VLLM_PLUGINS")
"""Variables of a case that would change the platform or load plugins in this process."""


def main() -> None:
    """Answer the cases on stdin; only answers go to stdout."""
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints goes to stderr
    os.environ.pop("VLLM_TARGET_DEVICE", None)
    os.environ.update(QUIET)
    gpu = stub_cuda.Gpu()
    _describe(gpu, request.get("gpu", {}))
    stub_cuda.install(gpu)
    with tempfile.TemporaryDirectory() as folder:
        _answer(request["cases"], gpu, Path(folder), answers)


def _answer(cases: list[dict[str, Any]], gpu: stub_cuda.Gpu, folder: Path, answers: TextIO) -> None:
    for case in cases:
        _describe(gpu, case.get("gpu", {}))
        result: dict[str, Any] = {"id": case.get("id", ""), "error": None, "unsupported": None}
        with _environment(case.get("env", {})), _warnings() as warnings:
            try:
                result |= _check(case["argv"], folder)
            except _RefusedError as error:
                result["error"] = str(error)
            except Exception as error:  # whatever stops the configuration is the answer
                result["error"] = f"{type(error).__name__}: {_first_line(error)}"
        answers.write(json.dumps(result | {"warnings": warnings}) + "\n")


class _RefusedError(Exception):
    """vLLM's argument parser refused the command line."""


def _check(argv: list[str], folder: Path) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.models.kimi_k3.nvidia.specialized_decode.runtime import unsupported
    from vllm.usage.usage_lib import UsageContext

    namespace = _parse(argv)
    _check_parsers(namespace)
    _stand_in(namespace, folder)
    args = AsyncEngineArgs.from_cli_args(namespace)
    headless = bool(getattr(namespace, "headless", False))
    config = args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER, headless=headless)
    return {"unsupported": unsupported(config), "resolved": _resolved(config)}


def _parse(argv: list[str]) -> Any:
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_args(argv)
    except SystemExit:
        last = said.getvalue().strip().splitlines()[-1]
        raise _RefusedError(last.partition("error: ")[2] or last) from None


def _check_parsers(namespace: Any) -> None:
    """vLLM's own quick checks, and its parser names, before what needs a tokenizer is left out."""
    from vllm.entrypoints.common.cli_args import validate_api_server_args, validate_parsed_serve_args
    from vllm.reasoning import ReasoningParserManager

    validate_parsed_serve_args(namespace)
    validate_api_server_args(namespace)
    known = ReasoningParserManager.list_registered()
    if namespace.reasoning_parser and namespace.reasoning_parser not in known:
        raise _RefusedError(f"invalid reasoning parser: {namespace.reasoning_parser}")
    namespace.reasoning_parser = ""


def _stand_in(namespace: Any, folder: Path) -> None:
    """Point model and drafter at local configurations; leave out what needs a tokenizer or a processor."""
    model = getattr(namespace, "model_tag", None) or namespace.model
    namespace.model = namespace.model_tag = _local(model, folder, "model", model_config())
    namespace.tokenizer, namespace.revision = None, None
    namespace.skip_tokenizer_init = namespace.language_model_only = True
    spec = namespace.speculative_config
    if isinstance(spec, dict) and spec.get("model"):
        namespace.speculative_config = spec | {
            "model": _local(spec["model"], folder, "drafter", drafter_config())
        }


def _resolved(config: Any) -> dict[str, Any]:
    """The decisions that a plan predicts."""
    parallel, scheduler, cache = config.parallel_config, config.scheduler_config, config.cache_config
    compilation, spec = config.compilation_config, config.speculative_config
    return {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "cache_dtype": cache.cache_dtype,
        "draft_tokens": spec.num_speculative_tokens if spec is not None else 0,
        "draft_slots": spec.max_num_new_slots_for_drafting if spec is not None else 0,
        "cudagraph_mode": compilation.cudagraph_mode.name,
        "compilation_mode": compilation.mode.name,
        "cudagraph_capture_sizes": list(compilation.cudagraph_capture_sizes or ()),
        "v2_model_runner": config.use_v2_model_runner,
        "additional_config": config.additional_config,
        **_cache_bytes(config),
    }


def _cache_bytes(config: Any) -> dict[str, int]:
    """One KDA layer's state page and one token's MLA cache row, by vLLM's own calculators; bytes per rank."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
    from vllm.v1.kv_cache_interface import MambaSpec, MLAAttentionSpec

    model, cache = config.model_config, config.cache_config
    cls, _ = ModelRegistry.resolve_model_cls(model.architecture, model_config=model)
    state = MambaSpec(
        shapes=cls.get_mamba_state_shape_from_config(config),
        dtypes=cls.get_mamba_state_dtype_from_config(config),
        block_size=-1,
    )
    row = MLAAttentionSpec(
        block_size=1,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=model.get_head_size(),
        dtype=kv_cache_dtype_str_to_dtype(cache.cache_dtype, model),
        cache_dtype_str=cache.cache_dtype,
    )
    return {"kda_page_bytes": state.page_size_bytes, "mla_row_bytes": row.page_size_bytes}


def _local(model: str, folder: Path, name: str, config: dict[str, Any]) -> str:
    """A directory that has a ``config.json``: the model's own, or one with Kimi K3's sizes."""
    if Path(model, "config.json").is_file():
        return model
    target = folder / name
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    return str(target)


def _describe(gpu: stub_cuda.Gpu, said: dict[str, Any]) -> None:
    for key, value in said.items():
        setattr(gpu, key, tuple(value) if key == "capability" else value)


@contextlib.contextmanager
def _environment(extra: dict[str, str]) -> Iterator[None]:
    """``extra`` for one case; what vLLM sets on its own (breakable graphs) is undone, too."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in extra.items() if name not in NOT_HERE})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Collect(logging.WARNING)
    logging.getLogger("vllm").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("vllm").removeHandler(handler)


def _first_line(error: Exception) -> str:
    """One line: pydantic's first message, or the first line of any other error."""
    details = getattr(error, "errors", None)
    text = details()[0]["msg"] if callable(details) else str(error)
    return (text.removeprefix("Value error, ").strip().splitlines() or [""])[0]


if __name__ == "__main__":
    main()
