"""Tools that build, audit, test and measure kernels; no operator needs them to run."""
