#!/usr/bin/env bash
# h200-tp16: Two HGX H200 nodes, TP16 with expert parallelism over InfiniBand; the standard path
# Rendered by k3ctl 0.1.0; status: untested
# every other node
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
exec ray start --block --address "${HEAD_ADDR:?address of the head node}:6379"
