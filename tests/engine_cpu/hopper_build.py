"""vLLM's own Kimi K3 classes for CUDA, built on the CPU under the Hopper executor (for ``hopper_case``).

vLLM's attention and feed-forward modules cannot compute here, so their ``forward`` is replaced by a cheap function of
the input; its mixture kernel by one that updates in place as the kernel does. The loop, the residual state, the stages,
the metadata classes, the registry and the parameters are vLLM's.
"""

from __future__ import annotations

import json
import tempfile
import types
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

LAYERS, BLOCK, HIDDEN, HEADS = 6, 3, 512, 2
CONFIG: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "vocab_size": 256, "hidden_size": HIDDEN,
    "intermediate_size": 256, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5,
    "num_experts": 8, "num_experts_per_token": 4, "num_shared_experts": 2, "moe_intermediate_size": 64,
    "routed_expert_hidden_size": 256, "latent_moe_use_norm": True, "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
    "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "mla_use_nope": True, "mla_use_output_gate": True,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3, 5], "full_attn_layers": [4, 6], "num_heads": HEADS, "head_dim": 128,
        "short_conv_kernel_size": 4, "use_full_rank_gate": True, "gate_lower_bound": -5.0,
    },
    "attn_res_block_size": BLOCK, "num_nextn_predict_layers": 0, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "bfloat16",
}  # fmt: skip


class Nothing:
    """A stream or an event that does nothing."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: None


def prepare() -> None:
    """Make vLLM believe that it sees one H200, and import its CUDA classes without their compiled parts."""
    from runtime.offline import stub_cuda

    stub_cuda.install(stub_cuda.Gpu((9, 0), "NVIDIA H200", 143771 << 20, 1))
    from vllm import triton_utils

    triton_utils.HAS_TRITON = False  # modules look inside it when it claims to be there
    triton_utils.triton.Config = lambda kwargs=None, **k: SimpleNamespace(
        kwargs=kwargs, num_stages=k.get("num_stages", 1), num_warps=k.get("num_warps", 4)
    )
    import torch
    import xgrammar  # noqa: F401  # looks at `cuda` itself: before that is a mock

    from tests.engine_cpu.cuda_runner import mock_packages

    mock_packages()
    torch.cuda.Stream = torch.cuda.Event = Nothing
    torch.cuda.current_device = lambda: "cpu"
    import vllm.engine.arg_utils
    import vllm.models.kimi_k3.nvidia.model
    import vllm.models.kimi_k3.nvidia.model_state  # noqa: F401


def ready() -> None:
    """What has to be true only after the imports."""
    import torch
    import vllm.config.vllm

    vllm.config.vllm.HAS_TRITON = True
    torch.ops._C.situ_and_mul = MagicMock()
    torch.cuda.is_current_stream_capturing = lambda: False


def folder(**changes: Any) -> str:
    """A model directory that holds a config only."""
    out = Path(tempfile.mkdtemp())
    (out / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return str(out)


def engine_config(
    model: dict[str, Any] | None = None, extra: dict[str, Any] | None = None, **arguments: Any
) -> Any:
    """vLLM's configuration of an engine; ``extra`` is its additional_config beside the backend that runs here."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=folder(**(model or {})), skip_tokenizer_init=True, load_format="dummy",
        additional_config={"kda_prefill_backend": "triton", **(extra or {})},
        **{"max_model_len": 2048, "max_num_seqs": 64, **arguments},
    ).create_engine_config()  # fmt: skip


@contextmanager
def stage(rank: int = 0, stages: int = 1, tp: int = 1):
    """This process as one pipeline stage, for vLLM's model and for ours."""
    import vllm.distributed
    from vllm.distributed import parallel_state
    from vllm.models.kimi_k3.nvidia import model

    group = SimpleNamespace(
        rank_in_group=rank, world_size=stages, is_first_rank=rank == 0, is_last_rank=rank == stages - 1
    )
    owners = (vllm.distributed, parallel_state, model)
    before = [owner.get_pp_group for owner in owners]
    sizes = vllm.distributed.get_tensor_model_parallel_world_size
    for owner in owners:
        owner.get_pp_group = lambda: group
    if tp > 1:  # after the build: the parameters are those of one rank
        vllm.distributed.get_tensor_model_parallel_world_size = lambda: tp
    try:
        yield
    finally:
        for owner, old in zip(owners, before, strict=True):
            owner.get_pp_group = old
        vllm.distributed.get_tensor_model_parallel_world_size = sizes


def build(config: Any, rank: int = 0, stages: int = 1) -> Any:
    """Our class, built by vLLM's constructor on the CPU, with random parameters."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    from runtime.engine.hopper.model import K3Hopper

    config.compilation_config.static_forward_context.clear()  # of a model that was built before
    with set_current_vllm_config(config), stage(rank, stages):
        if not parallel_state.model_parallel_is_initialized():
            store = tempfile.mktemp()
            parallel_state.init_distributed_environment(1, 0, f"file://{store}", 0, "gloo")
            parallel_state.initialize_model_parallel(1, 1, backend="gloo")
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = K3Hopper(vllm_config=config)
        finally:
            torch.set_default_dtype(before)
    for name, parameter in model.named_parameters():
        seed = torch.Generator().manual_seed(hash_of(name))
        scale = 0.02 if parameter.dim() > 1 else 0.3
        fresh = torch.randn(parameter.shape, generator=seed) * scale
        parameter.data.copy_(fresh + 1 if "norm" in name else fresh)
    for layer in model.model.layers[model.model.start_layer : model.model.end_layer]:
        layer.self_attn.forward = types.MethodType(fake_attention(layer.layer_idx), layer.self_attn)
        layer.mlp.forward = types.MethodType(fake_feed_forward(layer.layer_idx), layer.mlp)
    return model


def hash_of(name: str) -> int:
    import zlib

    return zlib.crc32(name.encode())


def fake_attention(index: int) -> Any:
    def forward(self: Any, hidden_states: Any, positions: Any) -> Any:
        return (hidden_states.float() * (0.3 + 0.1 * index) + positions[:, None].float() * 1e-3).to(
            hidden_states.dtype
        )

    return forward


def fake_feed_forward(index: int) -> Any:
    def forward(self: Any, hidden_states: Any) -> Any:
        return (hidden_states.float().roll(1, -1) * (0.7 - 0.05 * index)).to(hidden_states.dtype)

    return forward


def mixture(
    prefix,
    delta,
    blocks,
    norm_weight,
    qk_weight,
    output_norm_weight,
    num_blocks,
    block_write_idx,
    eps,
    output_norm_eps,
):
    """vLLM's ``attn_res`` in PyTorch, in place as its kernel."""
    from runtime.kernels.attn_res.reference import attn_res

    mixed = attn_res(
        prefix, delta, blocks, num_blocks=num_blocks, write=None if block_write_idx < 0 else block_write_idx,
        score_norm=norm_weight, score_vec=qk_weight, eps=eps, out_norm=output_norm_weight, out_eps=output_norm_eps,
    )  # fmt: skip
    if delta is not None:
        prefix.copy_(mixed.prefix)
    if block_write_idx >= 0:
        blocks.copy_(mixed.blocks)
    return mixed.out


class FakeMix:
    """Our mixture kernel in PyTorch: same arguments, same in-place updates; counts its calls."""

    calls: ClassVar[list[tuple[int | None, Any]]] = []
    choice = SimpleNamespace(fallback=False)

    def __init__(self, site: Any, overlap: Any, provider: str = "auto") -> None:
        self.site, self.overlap = site, overlap

    def __call__(self, residual: Any, out: Any) -> Any:
        from runtime.model.step import Residual

        FakeMix.calls.append((self.site.layer, self.overlap))
        s = self.site
        out.copy_(
            mixture(
                residual.prefix, residual.delta, residual.blocks, s.score_norm, s.score_vec, s.out_norm,
                s.num_blocks, -1 if s.write is None else s.write, s.eps, s.out_eps,
            )
        )  # fmt: skip
        return out, Residual(residual.prefix, None, residual.blocks)


class FakeKda:
    """Our attention block in PyTorch, with the operator's own definition; remembers where states were kept."""

    rows: ClassVar[list[Any]] = []
    choice = SimpleNamespace(fallback=False)

    def __init__(
        self, weights: Any, overlap: Any, query_len: int = 1, all_reduce: Any = None, provider: str = "auto"
    ):
        self.w, self.overlap, self.query_len, self.all_reduce = weights, overlap, query_len, all_reduce

    def __call__(self, x: Any, rows: Any, buffers: Any, out: Any) -> Any:
        out = self.local(x, rows, buffers, out)
        return out if self.all_reduce is None else self.all_reduce(out)

    def local(self, x: Any, rows: Any, buffers: Any, out: Any) -> Any:
        import torch

        from runtime.kernels.kda.composed import kda_decode_composed

        FakeKda.rows.append(rows)
        w = self.w
        projected = buffers.projected[:, : w.in_proj.shape[0]]
        projected.copy_(torch.nn.functional.linear(x, w.in_proj))
        kda_decode_composed(
            projected, w.f_b, w.conv, w.A_log, w.dt_bias, w.norm, rows.conv_state, rows.state, rows.slots,
            rows.accepted, buffers.y, lower_bound=w.lower_bound, eps=w.eps,
        )  # fmt: skip
        out.copy_(torch.nn.functional.linear(buffers.y, w.o_proj))
        return out


@contextmanager
def capturing(model: Any, metadata: dict[str, Any], mode: str = "NONE", slots: dict[str, Any] | None = None):
    """A CUDA graph capture with this metadata, as vLLM's runner sets it up."""
    import torch
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import set_forward_context

    before = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        with set_forward_context(
            metadata,
            model.vllm_config,
            num_tokens=1,
            cudagraph_runtime_mode=CUDAGraphMode[mode],
            slot_mapping=slots or {},
        ):
            yield
    finally:
        torch.cuda.is_current_stream_capturing = before


def metadata_for(model: Any, requests: int, query_len: int = 1, **changes: Any) -> dict[str, Any]:
    """vLLM's own metadata objects of a decode graph, by layer."""
    import torch
    from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadata
    from vllm.models.kimi_k3.nvidia.kda_metadata import KimiK3KDAMetadata

    tokens = requests * query_len
    spec = query_len > 1
    slots = torch.arange(1, 1 + tokens, dtype=torch.int32).view(requests, query_len)
    kda = {
        "num_prefills": 0, "num_prefill_tokens": 0, "num_decodes": 0 if spec else requests,
        "num_decode_tokens": 0 if spec else tokens, "num_spec_decodes": requests if spec else 0,
        "num_spec_decode_tokens": tokens if spec else 0, "num_actual_tokens": tokens,
        "spec_state_indices_tensor": slots if spec else None,
        "non_spec_state_indices_tensor": None if spec else slots[:, 0].contiguous(),
        "num_accepted_tokens": torch.ones(requests, dtype=torch.int32) if spec else None,
    }  # fmt: skip
    mla = {
        "num_reqs": requests, "max_query_len": query_len, "max_seq_len": 64, "num_actual_tokens": tokens,
        "query_start_loc": torch.arange(0, tokens + 1, query_len), "slot_mapping": torch.zeros(tokens),
        "num_decodes": requests, "num_decode_tokens": tokens, "num_prefills": 0,
    }  # fmt: skip
    found = {}
    for layer in model.model.layers[model.model.start_layer : model.model.end_layer]:
        attention = layer.self_attn
        if hasattr(attention, "in_proj_qkvgfab"):
            found[attention.prefix] = KimiK3KDAMetadata(
                **{**kda, **{k: v for k, v in changes.items() if k in kda}}
            )
        else:
            allowed = {k: v for k, v in changes.items() if k in mla}
            found[attention.layer_name] = MLACommonMetadata(**{**mla, **allowed})
    return found


def bind_caches(model: Any, slots: int, window: int = 3) -> None:
    """Paged state of every KDA layer; slot 0 is vLLM's null slot."""
    import torch

    for layer in model.model.layers[model.model.start_layer : model.model.end_layer]:
        if hasattr(layer.self_attn, "in_proj_qkvgfab"):
            generator = torch.Generator().manual_seed(layer.layer_idx)
            conv = torch.randn(slots, window, 3 * HEADS * 128, generator=generator).bfloat16()
            state = torch.randn(slots, HEADS, 128, 128, generator=generator) * 0.1
            layer.self_attn.kv_cache = (conv, state)
