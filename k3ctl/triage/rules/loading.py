"""Weights that cannot be loaded as they lie, and layouts that do not fit the machine."""

from __future__ import annotations

from datetime import date

from k3ctl.triage.rules import TriageRule

_CHECKED = date(2026, 11, 30)
_EXPIRES = date(2027, 9, 30)

RULES = (
    TriageRule(
        id="shard-truncated",
        title="a checkpoint shard is truncated or damaged{shard}",
        cause="its header promises more bytes than the file holds: a download that was interrupted, a full disk, "
        "or a Git LFS "
        "pointer in place of the file",
        action="compare the sizes with the repository's (`ls -lL`), fetch that shard again (`hf download "
        "--force-download`), and "
        "look at the free space of the cache",
        source="https://github.com/QwenLM/Qwen3-VL/issues/264, https://github.com/gpustack/gpustack/issues/815",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"Error while deserializing(?: header)?: (?P<what>[\w ,]+)",
            r"(?P<what>MetadataIncompleteBuffer|HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*)",
            r"SafetensorError: (?P<what>.{0,80})",
            r"(?P<what>file not fully covered|incomplete metadata)",
            r"(?P<what>PytorchStreamReader failed (?:reading zip archive|finding|locating))",
            r"(?P<what>(?:unexpected|premature) (?:EOF|end of file)).{0,80}?safetensors",
            r"\.safetensors.{0,120}?(?P<what>(?:is )?(?:truncated|corrupt\w*)|size "
            r"mismatch|(?:unexpected|premature) (?:EOF|end of file))",
        ),
        unlike="`shard-missing`: the file is not there at all; `disk-full`: the write failed, not the read",
    ),
    TriageRule(
        id="shard-missing",
        title="a checkpoint shard is missing: {shard}",
        cause="the index names a file that is not in the directory: the download is not complete",
        action="fetch the model again (`hf download` continues where it stopped); a local copy needs every file of "
        "the index",
        source="vLLM 0.33.0, model_executor/model_loader/weight_utils.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"(?:No such file or directory|FileNotFoundError|does not "
            r"exist).{0,300}?(?P<shard>[\w.\-]+\.safetensors)",
            r"(?P<shard>[\w.\-]+\.safetensors).{0,60}?(?:not found|does not exist|is missing|No such file)",
            r"(?P<shard>weights) were not initialized from checkpoint",
        ),
        unlike="`shard-truncated`: the file is there and too short; `model-not-found`: no model at all",
    ),
    TriageRule(
        id="tp-larger-than-node",
        title="{wanted} ranks are asked for, and this node has {gpus} GPUs",
        cause="tensor × pipeline parallelism is larger than the node, and the arguments do not say that there are "
        "more nodes",
        action="{advice}",
        source="vLLM 0.33.0, config/parallel.py and v1/executor/ray_utils.py",
        checked=_CHECKED,
        expires=_EXPIRES,
        patterns=(
            r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
            r"Tensor parallel size \((?P<wanted>\d+)\) exceeds available GPUs \((?P<gpus>\d+)\)",
            r"adjusted local rank (?P<wanted>\d+) is out of bounds",
            r"local_rank \(?(?P<wanted>\d+)\)?.{0,40}?(?:device_count|visible devices|number "
            r"of).{0,20}?(?P<gpus>\d+)",
            r"CUDA error: invalid device ordinal",
        ),
        unlike="`gpu-lost` and `container-lost-gpus`: the GPUs were there; count them with `nvidia-smi -L` first",
    ),
    TriageRule(
        id="retention-interval",
        title="prefix_cache_retention_interval {interval} is no multiple of the block size {block}",
        cause="a hybrid model keeps its recurrent states at block boundaries only, so the interval must fall on them",
        action="{advice}",
        source="vLLM 0.33.0, v1/core/kv_cache_coordinator.py and kv_connector/v1/offloading/scheduler.py",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        patterns=(
            r"prefix_cache_retention_interval \((?P<interval>-?\d+)\) must be (?:non-negative and )?a multiple of "
            r".*?\((?P<block>\d+)\)",
        ),
    ),
    TriageRule(
        id="retention-useless",
        title="prefix_cache_retention_interval is set for a model that has no use for it",
        cause="it applies to models with a recurrent state or a sliding window",
        action="set prefix_cache_retention_interval=0, or drop it",
        source="vLLM 0.33.0, v1/core/kv_cache_coordinator.py",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        patterns=(r"prefix_cache_retention_interval is set but this model has",),
        unlike="`retention-interval`: it applies, with another number",
    ),
    TriageRule(
        id="replayssm-checkpoint",
        title="assertion `{what}`: ReplaySSM with prefix caching",
        cause="ReplaySSM and prefix caching disagree about a checkpoint's place in the request's blocks; both are "
        "on in this log",
        action="update vLLM to a build with pull request 55747, or set use_replayssm=false",
        source="https://github.com/vllm-project/vllm/pull/55747",
        checked=_CHECKED,
        expires=date(2027, 3, 31),
        patterns=(r"(?P<what>assert 0 <= checkpoint_idx < len\(blocks\))",),
        unlike="`illegal-access-replayssm`: the GPU fails, not an assertion",
    ),
)
