"""Write the table of `vllm serve` arguments that k3ctl checks names and types against.

Run it with the vLLM that the table should describe (a build without kernels is enough):

    VLLM_TARGET_DEVICE=cpu VLLM_PLUGINS= \
        python scripts/dump_vllm_arguments.py k3ctl/profiles/vllm_arguments.json

The table holds, per argument: its kind (how vLLM parses the text), whether it takes several values, its
choices, and for a JSON argument the names of its fields; and the VLLM_* environment variables.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

KINDS = {
    "str": "str",
    "int": "int",
    "float": "float",
    "loads": "json",
    "human_readable_int": "human_int",
    "human_readable_int_or_auto": "human_int_or_auto",
    "union_dict_and_str": "json_or_str",
    "parse_reasoning_parser": "str",
}
JSON_FIELDS = {
    "speculative_config": "SpeculativeConfig",
    "attention_config": "AttentionConfig",
    "compilation_config": "CompilationConfig",
    "kv_transfer_config": "KVTransferConfig",
    "structured_outputs_config": "StructuredOutputsConfig",
    "kernel_config": "KernelConfig",
    "profiler_config": "ProfilerConfig",
}


def kind_of(parse: Any) -> str:
    """The kind behind a parser function, looking into the wrappers that make it optional."""
    if parse is None:
        return "str"
    name = parse.__qualname__.rsplit(".", 1)[-1]
    if name in KINDS:
        return KINDS[name]
    if name == "parse_dataclass":
        return "json"
    if name in {"_optional_type", "_parse_type"}:
        return next(kind_of(cell.cell_contents) for cell in parse.__closure__ if callable(cell.cell_contents))
    return "str"


def entry(action: argparse.Action) -> dict[str, Any]:
    """One argument's row of the table."""
    if action.nargs == 0:
        return {"kind": "bool"} if hasattr(action, "negative_option_strings") else {"kind": "switch"}
    row: dict[str, Any] = {"kind": kind_of(action.type)}
    if action.nargs == "+" or type(action).__name__ == "_AppendAction":
        row["many"] = True
    if action.choices:
        row["choices"] = [str(choice) for choice in action.choices]
    short = [option for option in action.option_strings if not option.startswith("--")]
    if short:
        row["short"] = short[0].lstrip("-")
    return row


def main() -> None:
    """Write the table to the path given on the command line."""
    import vllm
    import vllm.config
    from vllm import envs
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    arguments = {a.dest: entry(a) for a in parser._actions if a.option_strings and a.dest != "help"}
    for name, config in JSON_FIELDS.items():
        fields = dataclasses.fields(getattr(vllm.config, config))
        arguments[name]["fields"] = sorted(field.name for field in fields if field.init)
    table = {
        "vllm": vllm.__version__,
        "environment": sorted(name for name in envs.environment_variables if name.startswith("VLLM_")),
        "arguments": dict(sorted(arguments.items())),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table["arguments"].items()]
    environment = json.dumps(table["environment"], indent=1)
    head = f'{{\n"vllm": {json.dumps(table["vllm"])},\n"environment": {environment},\n"arguments": {{\n'
    text = head + ",\n".join(lines) + "\n}\n}\n"
    Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
