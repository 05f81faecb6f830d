"""K3 in vLLM on a machine without a GPU: model classes, caches, executors and stand-ins for missing operators."""
