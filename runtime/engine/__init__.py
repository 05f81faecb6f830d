"""What vLLM loads: model classes, caches, executors, stand-ins for missing ops, the witness's exports."""
