"""k3ctl: an operator's CLI, launcher and runtime for Kimi K3 on vLLM."""

__version__ = "0.1.0"
