#!/usr/bin/env bash
# gb300-tp16-dcp16: Long context on four GB300 trays; the MLA cache divided over all 16 GPUs, specialized decode
# Rendered by k3ctl 0.1.0; status: untested
# node 3 of 4
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export NCCL_MNNVL_ENABLE=1
export NCCL_CUMEM_ENABLE=1
export NCCL_NVLS_ENABLE=1
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
exec vllm serve moonshotai/Kimi-K3 \
  --served-model-name kimi-k3 \
  --trust-remote-code \
  --tensor-parallel-size 16 \
  --load-format fastsafetensors \
  --gpu-memory-utilization 0.9 \
  --max-model-len auto \
  --kv-cache-dtype fp8 \
  --attention-config '{"use_prefill_query_quantization":true,"mla_prefill_backend":"TRTLLM_RAGGED"}' \
  --enable-prefix-caching \
  --reasoning-parser kimi_k3 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --cudagraph-metrics \
  --custom-histogram-buckets '{"inter_token_latency":[0.0005,0.001,0.0015,0.002,0.003,0.005,0.01,0.02,0.05,0.1]}' \
  --dcp-comm-backend a2a \
  --nnodes 4 \
  --decode-context-parallel-size 16 \
  --max-num-seqs 8 \
  --max-num-batched-tokens 16384 \
  --speculative-config '{"model":"Inferact/Kimi-K3-DSpark","method":"dspark","num_speculative_tokens":7,"draft_sample_method":"probabilistic","rejection_sample_method":"block"}' \
  --additional-config '{"decode_backend":"latency_specialized"}' \
  --host 127.0.0.1 \
  --port 8000 \
  --node-rank 3 \
  --master-port 29501 \
  --master-addr "${MASTER_ADDR:?address of node 0}" \
  --headless
