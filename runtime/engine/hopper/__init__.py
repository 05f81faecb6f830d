"""Decode steps of vLLM's CUDA engine on Hopper, served through our loop; everything else stays vLLM's."""
