#!/usr/bin/env bash
# gb300-tp16-dcp16: Long context on four GB300 trays; the MLA cache divided over all 16 GPUs, specialized decode
# Rendered by k3ctl 0.1.0; status: untested
# every other node
set -euo pipefail
export VLLM_PLUGINS=k3_runtime,k3_witness
export NCCL_MNNVL_ENABLE=1
export NCCL_CUMEM_ENABLE=1
export NCCL_NVLS_ENABLE=1
export VLLM_ENGINE_READY_TIMEOUT_S=3600
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800
exec ray start --block --address "${HEAD_ADDR:?address of the head node}:6379"
