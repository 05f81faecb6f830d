#!/usr/bin/env bash
# cpu-tiny: A tiny random Kimi K3 on the CPU engine; the same commands as production, on any machine
# Rendered by k3ctl 0.1.0; status: supported
# head node
set -euo pipefail
export VLLM_TARGET_DEVICE=cpu
export VLLM_PLUGINS=k3_runtime,k3_witness
export VLLM_HOST_IP=127.0.0.1
export VLLM_CPU_OMP_THREADS_BIND=nobind
export OMP_NUM_THREADS=1
export VLLM_NO_USAGE_STATS=1
export HF_HUB_OFFLINE=1
export DO_NOT_TRACK=1
ray start --head --port 6379
until [ "$(python3 -c 'import ray; ray.init("auto", log_to_driver=False); print(int(ray.cluster_resources()["GPU"]))' 2>/dev/null || echo 0)" -ge 0 ]; do
  echo 'waiting for 0 GPUs in the Ray cluster' >&2
  sleep 5
done
exec vllm serve /models/k3-tiny \
  --served-model-name k3-tiny \
  --load-format k3_seeded \
  --dtype float32 \
  --enforce-eager \
  --kv-cache-memory-bytes 268435456 \
  --max-model-len 1024 \
  --enable-prefix-caching \
  --structured-outputs-config '{"backend":"xgrammar","disable_any_whitespace":true}' \
  --max-num-seqs 16 \
  --max-num-batched-tokens 256 \
  --speculative-config '{"method":"mtp","num_speculative_tokens":3}' \
  --additional-config '{"decode_backend":"latency_specialized"}' \
  --host 127.0.0.1 \
  --port 8000 \
  --distributed-executor-backend ray
