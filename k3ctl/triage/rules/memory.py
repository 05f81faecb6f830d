"""Memory: of the GPU, of the host, of the cache."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 9, 22)
_EXPIRES = date(2027, 3, 31)

RULES = (
    TriageRule(
        id="gpu-memory-held",
        title="another process holds the memory of {device}: {free} of {total} GiB are free",
        cause="usually an engine core whose server died; its name is VLLM::EngineCore",
        action="find it (`nvidia-smi`, `k3ctl doctor`), and end that one process by its pid{holder}",
        source="https://github.com/Blackwellboy/model-serving-minefield/pull/53",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(
            r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on "
            r"startup is less",
        ),
    ),
    TriageRule(
        id="kv-too-small",
        title="the cache is too small for max_model_len {asked}: {needed} GiB needed, {available} GiB there",
        cause="one request of the longest length does not fit beside weights and workspace",
        action="set max_model_len={longest} or less",
        source="https://github.com/vllm-project/vllm/issues/28228",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(
            r"max seq len \((?P<asked>\d+)\).*?\((?P<needed>[\d.]+) GiB KV cache is "
            r"needed.*?\((?P<available>[\d.]+) GiB\)"
            r".*?estimated maximum model length is (?P<longest>\d+)",
        ),
    ),
    TriageRule(
        id="mamba-blocks",
        title="max_num_seqs {asked} exceeds the {available} recurrent states that fit",
        cause="every sequence holds one KDA state entry (54.78 MiB over all ranks)",
        action="set max_num_seqs={available} or less",
        source="vLLM 0.33.0, v1/core/kv_cache_utils.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"max_num_seqs \((?P<asked>\d+)\) exceeds available Mamba cache blocks \((?P<available>\d+)\)",
        ),
    ),
    TriageRule(
        id="no-cache-memory",
        title="no memory is left for the cache",
        cause="weights, workspace and graphs already take what gpu_memory_utilization allows",
        action="raise gpu_memory_utilization if the GPU is free, else use more GPUs",
        source="vLLM 0.33.0, v1/core/kv_cache_utils.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(r"No available memory for the cache blocks",),
    ),
    TriageRule(
        id="capture-oom",
        title="out of memory while capturing CUDA graphs: {wanted} wanted, {free} free",
        cause="graphs and the MXFP4 workspace live outside vLLM's pool; its estimate was too small",
        action="{advice}",
        source="https://github.com/vllm-project/vllm/issues/49224, "
        "https://github.com/vllm-project/vllm/issues/57475",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]+ \w+).*?of which (?P<free>[\d.]+ "
            r"\w+) is free",
        ),
        within=r"in _?\w*captur\w*$|in capture_model|[Cc]aptur\w+ (?:CUDA|cuda) ?graph",
        unlike="`gpu-oom`: not while graphs are captured; `gpu-memory-held`: refused before anything was loaded",
    ),
    TriageRule(
        id="gpu-oom",
        title="the GPU ran out of memory{what}",
        cause="more was wanted than is free",
        action="{advice}",
        source="https://github.com/SemiAnalysisAI/InferenceX/blob/main/perf-changelog.yaml",
        checked=_CHECKED,
        expires=date(2027, 9, 30),
        patterns=(
            r"CUDA out of memory\.(?P<what> Tried to allocate [\d.]+ \w+)",
            r"CUDA_ERROR_OUT_OF_MEMORY(?P<what>)",
            r"(?:torch\.OutOfMemoryError|CUDA error): out of memory(?P<what>)",
            r"Cuda failure (?:2 )?'out of memory'(?P<what>)",
        ),
        unlike="`capture-oom`: while graphs are captured; `cgroup-oom` and `host-oom`: host memory, said by the "
        "kernel",
    ),
)
