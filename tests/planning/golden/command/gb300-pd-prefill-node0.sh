#!/usr/bin/env bash
# gb300-pd-prefill: Prefill half of a pair on two GB300 trays; hands its state to gb300-pd-decode with Mooncake
# Rendered by k3ctl 0.1.0; status: untested
# node 0 of 2
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export NCCL_MNNVL_ENABLE=1
export NCCL_CUMEM_ENABLE=1
export NCCL_NVLS_ENABLE=1
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
export VLLM_SSM_CONV_STATE_LAYOUT=DS
export VLLM_MOONCAKE_BOOTSTRAP_PORT=8998
exec vllm serve moonshotai/Kimi-K3 \
  --served-model-name kimi-k3 \
  --trust-remote-code \
  --tensor-parallel-size 8 \
  --load-format fastsafetensors \
  --gpu-memory-utilization 0.9 \
  --max-model-len auto \
  --kv-cache-dtype fp8 \
  --attention-config '{"use_prefill_query_quantization":true,"mla_prefill_backend":"FLASHINFER"}' \
  --enable-prefix-caching \
  --reasoning-parser kimi_k3 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --cudagraph-metrics \
  --custom-histogram-buckets '{"inter_token_latency":[0.0005,0.001,0.0015,0.002,0.003,0.005,0.01,0.02,0.05,0.1]}' \
  --port 8100 \
  --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}' \
  --nnodes 2 \
  --max-num-seqs 32 \
  --max-num-batched-tokens 16384 \
  --speculative-config '{"model":"Inferact/Kimi-K3-DSpark","method":"dspark","num_speculative_tokens":7,"draft_sample_method":"probabilistic","rejection_sample_method":"block"}' \
  --host 127.0.0.1 \
  --node-rank 0 \
  --master-port 29501 \
  --master-addr "${MASTER_ADDR:?address of node 0}"
