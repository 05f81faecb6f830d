#!/usr/bin/env bash
# b300-tp8-8k1k-blog: The published B300 8K/1K baseline command with k3ctl's plugins added; the standard path, for comparisons
# Rendered by k3ctl 0.1.0; status: supported
# node 0 of 1
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
exec vllm serve moonshotai/Kimi-K3 \
  --trust-remote-code \
  --tensor-parallel-size 8 \
  --load-format fastsafetensors \
  --gpu-memory-utilization 0.9 \
  --reasoning-parser kimi_k3 \
  --enable-auto-tool-choice \
  --tool-call-parser kimi_k3 \
  --max-model-len auto \
  --no-enable-prefix-caching \
  --speculative-config '{"model":"RedHatAI/Kimi-K3-speculator.dspark","method":"dspark","num_speculative_tokens":8,"draft_sample_method":"probabilistic","rejection_sample_method":"standard"}' \
  --host 127.0.0.1 \
  --port 8000
