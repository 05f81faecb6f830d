"""The engine side of k3ctl: a Kimi K3 model for vLLM, its kernels, and the witness that counts which path ran."""
