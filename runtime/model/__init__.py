"""Kimi K3 in plain PyTorch: configuration, layers, whole model, step planning. Knows nothing of vLLM."""
