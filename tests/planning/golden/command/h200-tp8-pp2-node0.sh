#!/usr/bin/env bash
# h200-tp8-pp2: Two HGX H200 nodes, TP8 in each, pipeline between them; decode steps through the runtime's own path
# Rendered by k3ctl 0.1.0; status: untested
# node 0 of 2
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export NCCL_CUMEM_ENABLE=1
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
exec vllm serve moonshotai/Kimi-K3 \
  --served-model-name kimi-k3 \
  --trust-remote-code \
  --tensor-parallel-size 8 \
  --pipeline-parallel-size 2 \
  --load-format fastsafetensors \
  --gpu-memory-utilization 0.97 \
  --max-model-len 32768 \
  --moe-backend humming \
  --reasoning-parser kimi_k3 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --custom-histogram-buckets '{"inter_token_latency":[0.001,0.002,0.005,0.01,0.015,0.02,0.03,0.05,0.1,0.2,0.5]}' \
  --nnodes 2 \
  --max-num-seqs 5 \
  --max-num-batched-tokens 4096 \
  --additional-config '{"k3_decode":"hopper"}' \
  --host 127.0.0.1 \
  --port 8000 \
  --node-rank 0 \
  --master-port 29501 \
  --master-addr "${MASTER_ADDR:?address of node 0}"
