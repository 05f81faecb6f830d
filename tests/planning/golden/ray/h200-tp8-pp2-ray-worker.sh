#!/usr/bin/env bash
# h200-tp8-pp2: Two HGX H200 nodes, TP8 in each, pipeline between them; decode steps through the runtime's own path
# Rendered by k3ctl 0.1.0; status: untested
# every other node
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export NCCL_CUMEM_ENABLE=1
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
exec ray start --block --address "${HEAD_ADDR:?address of the head node}:6379"
