"""The oracle itself against other people's code, where that runs on a CPU: fla-core's naive KDA, transformers' layers.

``transformers`` has no Kimi K3, but each of its parts: KDA with a bounded gate (GLM-5-next), with Kimi-Linear's
softplus gate, NoPE MLA and the sigmoid router with its correction bias (Kimi-Linear). What they lack is made neutral:
an output gate of logit 0 is a factor of one half, SiTU with a bound of 10⁸ is SiLU.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runtime.kernels.kda.chunked import kda_chunked
from runtime.kernels.kda.reference import kda_recurrent
from runtime.model.config import K3Config
from tests.model.oracle import Oracle
from tests.model.oracle.formulas import delta_rule, l2_norm
from tests.model.small_models import arrays, small_config, small_weights

TOLERANCE = 2e-5  # the other side computes in FP32
TOKENS = 150


def close(theirs: Tensor, ours: np.ndarray) -> None:
    theirs = theirs.detach().double().reshape(ours.shape)
    torch.testing.assert_close(theirs, torch.from_numpy(ours), atol=TOLERANCE, rtol=TOLERANCE)


def rules_inputs(tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    q, k, v, raw = rng.standard_normal((4, tokens, 3, 16))
    beta = rng.random((tokens, 3))
    return {"q": q, "k": k, "v": v, "decay": -5 * rng.random(raw.shape) * (raw > 0), "beta": beta}


@pytest.fixture(scope="module")
def naive() -> ModuleType:
    """fla-core's definition, read from its file: the package around it imports Triton."""
    try:
        path = metadata.distribution("fla-core").locate_file("fla/ops/kda/naive.py")
    except metadata.PackageNotFoundError:
        pytest.skip("fla-core is not installed: `make setup-dev`")
    spec = importlib.util.spec_from_file_location("fla_naive_kda", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("form", ["naive_recurrent_kda", "naive_chunk_kda"])
def test_the_delta_rule_is_fla_cores(naive: ModuleType, form: str) -> None:
    x = rules_inputs(128)  # the chunked form takes whole chunks
    q, k = l2_norm(x["q"]), l2_norm(x["k"])
    ours = delta_rule(q / 4, k, x["v"], x["decay"], x["beta"])  # 4 = sqrt(16), fla's own default
    rows = [torch.from_numpy(a)[None] for a in (q, k, x["v"], x["decay"], x["beta"])]
    close(getattr(naive, form)(*rows)[0], ours)


def test_the_models_own_forms_are_fla_cores_with_a_state(naive: ModuleType) -> None:
    x = {name: torch.from_numpy(a) for name, a in rules_inputs(77).items()}
    state = torch.randn(3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    unit = [torch.from_numpy(l2_norm(x[n].numpy()))[None] for n in "qk"]
    rest = [x[n][None] for n in ("v", "decay", "beta")]
    theirs, after = naive.naive_recurrent_kda(
        *unit, *rest, initial_state=state.transpose(1, 2)[None].float(), output_final_state=True
    )
    o, states = kda_recurrent(state[None], *(x[n][None] for n in ("q", "k", "v", "decay", "beta")), 0.25)
    close(theirs, o.numpy())
    close(after.transpose(2, 3), states[:, -1].numpy())
    o, final = kda_chunked(state, *(x[n] for n in ("q", "k", "v", "decay", "beta")), 0.25)
    close(theirs, o.numpy())
    close(after.transpose(2, 3), final.numpy())


def layer_case(kda: bool, **changes: Any) -> tuple[K3Config, dict[str, Tensor], np.ndarray]:
    """A one-layer model, its weights in FP64, and inputs x [T,D]."""
    base = replace(
        small_config(3),
        num_hidden_layers=1,
        kda_layers=frozenset({0} if kda else ()),
        first_k_dense_replace=0,
    )
    config = replace(base, **changes)
    tensors = {
        n.removeprefix("language_model."): t.double()
        for n, t in small_weights(config, 7, packed=False).items()
    }
    return config, tensors, np.random.default_rng(5).standard_normal((TOKENS, config.hidden_size))


def part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"model.layers.0.{name}."
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def filled(module: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    module.load_state_dict(state)
    return module.double().eval()


@pytest.mark.parametrize("lower_bound", [-5.0, -0.7, None])
def test_the_kda_layer_is_transformers(lower_bound: float | None) -> None:
    if lower_bound is None:
        theirs = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
        kind = theirs.KimiLinearDeltaAttention
    else:
        theirs = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next")
        kind = theirs.Glm5NextTextLinearAttention
    config, tensors, x = layer_case(True, gate_lower_bound=lower_bound, conv_width=4, kda_num_heads=3)
    w, heads, dim = part(tensors, "self_attn"), config.kda_num_heads, config.kda_head_dim
    generator = torch.Generator().manual_seed(
        0
    )  # their output gate has a rank of one head: give ours the same
    low = torch.randn(dim, config.hidden_size, dtype=torch.float64, generator=generator) / 5
    high = torch.randn(heads * dim, dim, dtype=torch.float64, generator=generator)
    tensors["model.layers.0.self_attn.g_proj.weight"] = high @ low
    settings = SimpleNamespace(
        hidden_size=config.hidden_size,
        linear_num_heads=heads,
        linear_head_dim=dim,
        linear_conv_kernel_dim=config.conv_width,
        linear_lower_bound=lower_bound,
        hidden_act="silu",
        rms_norm_eps=config.kda_norm_eps,
        layer_types=["linear_attention"],
    )
    a_log = w["A_log"].reshape(1, 1, heads, 1) if lower_bound is None else w["A_log"]
    state = {f"{n}_proj.weight": w[f"{n}_proj.weight"] for n in "qkvbo"}
    state |= {f"forget_gate.{n}_proj.weight": w[f"{n}_proj.weight"] for n in ("f_a", "f_b")}
    state |= {
        "forget_gate.A_log": a_log,
        "forget_gate.dt_bias": w["dt_bias"],
        "o_norm.weight": w["o_norm.weight"],
    }
    state |= {"g_a_proj.weight": low, "g_b_proj.weight": high}
    state["conv1d.weight"] = torch.cat([w[f"{n}_conv1d.weight"] for n in "qkv"])
    out = filled(kind(settings, 0), state)(torch.from_numpy(x)[None])
    close(out, Oracle(config.to_hf(), arrays(tensors)).attention(0, x))


def test_the_mla_layer_is_transformers() -> None:
    theirs = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    config, tensors, x = layer_case(
        False, rms_norm_eps=1e-6, num_attention_heads=3
    )  # their low-rank norms: 1e-6
    w = part(tensors, "self_attn")
    w.pop("g_proj.weight").zero_()
    sizes = ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank")
    sizes += ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    settings = SimpleNamespace(
        **{name: getattr(config, name) for name in sizes},
        num_key_value_heads=config.num_attention_heads,
        attention_dropout=0.0,
        attention_bias=False,
        _attn_implementation="eager",
    )
    mask = torch.full((TOKENS, TOKENS), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    out, _ = filled(theirs.KimiLinearAttention(settings, 0), w)(torch.from_numpy(x)[None], mask)
    close(out / 2, Oracle(config.to_hf(), arrays(tensors)).attention(0, x))


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("scaling", [1.0, 2.5])
def test_the_moe_block_is_transformers(renormalize: bool, scaling: float) -> None:
    theirs = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    config, tensors, x = layer_case(
        True,
        rms_norm_eps=0.05,
        moe_renormalize=renormalize,
        routed_scaling_factor=scaling,
        situ_beta=1e8,
        situ_linear_beta=1e8,
        num_experts=12,
        num_experts_per_token=3,
        num_shared_experts=2,
    )
    w, experts = part(tensors, "block_sparse_moe"), range(config.num_experts)
    settings = SimpleNamespace(
        hidden_size=config.hidden_size,
        intermediate_size=config.moe_intermediate_size,
        moe_intermediate_size=config.moe_intermediate_size,
        num_local_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_token,
        n_group=1,
        topk_group=1,
        norm_topk_prob=renormalize,
        routed_scaling_factor=scaling,
        hidden_act="silu",
        _experts_implementation="eager",
    )
    router = filled(
        theirs.KimiLinearTopkRouter(settings),
        {"weight": w["gate.weight"], "e_score_correction_bias": w["gate.e_score_correction_bias"]},
    )
    shared = filled(
        theirs.KimiLinearMLP(settings, 2 * config.moe_intermediate_size),
        part(tensors, "block_sparse_moe.shared_experts"),
    )
    settings.hidden_size = latent = config.routed_expert_hidden_size
    gate_up = [torch.cat([w[f"experts.{e}.w1.weight"], w[f"experts.{e}.w3.weight"]]) for e in experts]
    down = [w[f"experts.{e}.w2.weight"] for e in experts]
    routed = filled(
        theirs.KimiLinearExperts(settings),
        {"gate_up_proj": torch.stack(gate_up), "down_proj": torch.stack(down)},
    )
    norm = filled(theirs.KimiLinearRMSNorm(latent, 0.05), {"weight": w["routed_expert_norm.weight"]})
    rows = torch.from_numpy(x)
    _, weights, ids = router(rows)
    z = norm(routed(rows @ w["routed_expert_down_proj.weight"].T, ids, weights.double()))
    out = z @ w["routed_expert_up_proj.weight"].T + shared(rows)
    close(out, Oracle(config.to_hf(), arrays(tensors)).feed_forward(0, x))
