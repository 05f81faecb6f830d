"""Serving profiles: data (schema, loader) → resolved configuration (resolve) → vLLM's argv (vllm_args)."""
