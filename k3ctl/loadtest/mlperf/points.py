"""Point files (rules §8.3), client configurations for the runs, and what a full submission still needs. Pure.

What k3ctl does not know stays null in a point file and stands in ``needed``: nothing is made up for a checker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k3ctl.facts.mlperf import kimi_k3
from k3ctl.loadtest.mlperf import curve
from k3ctl.loadtest.mlperf.folder import Folder, at
from k3ctl.loadtest.mlperf.rules import Served

PRECISION = {"moonshotai/Kimi-K3": "MXFP4", "nvidia/Kimi-K3-NVFP4": "NVFP4"}
"""Lowest precision of the weights of an approved checkpoint."""
WARMUP = (
    "duration_s",
    "requests_issued",
    "requests_completed",
    "data_source",
    "concurrency",
    "initialization_steps",
)
AUTHORED = {
    "division": "Standardized, Serviced or RDI",
    "link_to_model_transformation": "write-up of quantization or conversion, when weights were changed",
    "target_cohort": "YYYY-MM-C0 or YYYY-MM-C1",
    "seed_set": "the published seed set of the cohort, the same at every point",
    "shared_src": "directory with the code of the server, with a README.md",
    "shared_docs": "directory with software_disclosure.md",
}
"""Fields that only the submitter can fill, and what goes there."""
BESIDES = (
    "system_desc.json in every run folder (docs.mlcommons.org/mlperf-sysinfo writes one)",
    "system_power.json, one per system: provisioned power",
    "accuracy runs at the four mandatory regions: inline accuracy at every point, SWE-bench as the mean of four",
    "warm-up logs, kept for reviewers; warm-up data that are not the performance data set, or salted",
    "MLPerf's own checker over the bundle: endpoints-submission-cli check-submission",
    "membership, CLA and the cohort's registration",
)


def point(concurrency: int, points: Sequence[int], served: Served, folder: Folder | None) -> dict[str, Any]:
    """One point file; null where the submitter has to fill it in."""
    dataset = kimi_k3().dataset
    name, revision = served.model
    runtime = at(folder.config, "settings", "runtime") if folder else None
    return {
        "concurrency": concurrency,
        "region": curve.placed(points)[concurrency],
        "max_supported_concurrency": max(points),
        "runtime_settings": {
            "load_pattern": {"type": "agentic_inference", "target_concurrency": concurrency},
            "runtime": dict(runtime) if isinstance(runtime, Mapping) else None,
            "stream_all_chunks": at(folder.config, "settings", "client", "stream_all_chunks")
            if folder
            else None,
        },
        "dataset": dataset["name"],
        "dataset_name": dataset["name"],
        "dataset_type": "Performance",
        "dataset_link": dataset["link"],
        "model_name": "kimi-k3",
        "model_precision": PRECISION.get(name or ""),
        "link_to_model": f"https://huggingface.co/{name}/tree/{revision}" if name and revision else None,
        "warmup": dict.fromkeys(WARMUP),
        **dict.fromkeys(AUTHORED),
    }


def client_config(concurrency: int, model: str, url: str) -> dict[str, Any]:
    """A configuration of the reference client for one point; ``${…}`` are variables that it fills in itself."""
    facts = kimi_k3()
    return {
        "name": f"kimi-k3-agentic-c{concurrency}",
        "version": "1.0",
        "type": "online",
        "model_params": {
            "name": model,
            "tokenizer_name": "${MODEL_DIR}",
            **facts.sampling,
            "streaming": "on",
        },
        "datasets": [
            {
                "name": facts.dataset["name"],
                "type": "performance",
                "accuracy_config": {"eval_method": "agentic_inference_inline", "num_repeats": 1},
                "agentic_inference": {
                    "enable_salt": True,
                    "inject_tool_delay": True,
                    "num_trajectories_to_issue": facts.dataset["trajectories"],
                    "stop_issuing_on_first_user_complete": False,
                },
            },
            {
                "name": "swe_bench",
                "type": "accuracy",
                "accuracy_config": {
                    "eval_method": "swe_bench_scorer",
                    "num_repeats": 1,
                    "extras": {
                        "swebench_service_url": "${SWEBENCH_SERVICE_URL}",
                        "swebench_service_auth_token": "${SWEBENCH_SERVICE_AUTH_TOKEN}",
                        "num_instances": facts.gates["swe_bench_tasks"],
                    },
                },
            },
        ],
        "settings": {"load_pattern": {"type": "agentic_inference", "target_concurrency": concurrency}},
        "endpoint_config": {"endpoints": [url], "api_type": "openai"},
        "report_dir": f"r{concurrency}",
    }


def needed(made: Sequence[Mapping[str, Any]], folders: Sequence[Folder]) -> list[str]:
    """What a full submission still needs, as far as k3ctl can tell."""
    lines = []
    if not folders:
        lines.append(
            "the runs: MLPerf's reference client, unmodified, at every concurrency (`--mode both`); k3ctl's own "
            "clients give no official point"
        )
    lines += [f"point.yaml: {name} ({what})" for name, what in AUTHORED.items()]
    lines.append(f"point.yaml: warmup ({', '.join(WARMUP)})")
    if any(one["model_precision"] is None or one["link_to_model"] is None for one in made):
        lines.append("point.yaml: link_to_model and model_precision of the approved checkpoint")
    if any(one["runtime_settings"]["runtime"] is None for one in made):
        lines.append("point.yaml: runtime_settings of the run, with the seeds of the seed set")
    if any(one["runtime_settings"]["stream_all_chunks"] is None for one in made):
        lines.append("point.yaml: stream_all_chunks, as the client was set (the checker wants true)")
    return [*lines, *BESIDES]
