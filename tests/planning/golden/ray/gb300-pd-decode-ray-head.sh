#!/usr/bin/env bash
# gb300-pd-decode: Decode half of a pair on two GB300 trays; specialized decode without prompts in its steps
# Rendered by k3ctl 0.1.0; status: untested
# head node
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export NCCL_MNNVL_ENABLE=1
export NCCL_CUMEM_ENABLE=1
export NCCL_NVLS_ENABLE=1
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
export VLLM_SSM_CONV_STATE_LAYOUT=DS
export VLLM_MOONCAKE_BOOTSTRAP_PORT=8998
ray start --head --port 6379
until [ "$(python3 -c 'import ray; ray.init("auto", log_to_driver=False); print(int(ray.cluster_resources()["GPU"]))' 2>/dev/null || echo 0)" -ge 8 ]; do
  echo 'waiting for 8 GPUs in the Ray cluster' >&2
  sleep 5
done
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
  --port 8200 \
  --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_consumer"}' \
  --max-num-seqs 8 \
  --max-num-batched-tokens 16384 \
  --speculative-config '{"model":"Inferact/Kimi-K3-DSpark","method":"dspark","num_speculative_tokens":7,"draft_sample_method":"probabilistic","rejection_sample_method":"block"}' \
  --additional-config '{"decode_backend":"latency_specialized"}' \
  --host 127.0.0.1 \
  --distributed-executor-backend ray
