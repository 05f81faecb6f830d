"""The rules, one module per area. Importing this package fills ``finding.RULES``."""

from k3ctl.checks.rules import (
    cluster,
    driver,
    environment,
    fabric,
    gpu,
    host,
    imex,
    kernel,
    network,
    node,
    nvlink,
    probe,
    profile,
    unread,
)

__all__ = [
    "cluster",
    "driver",
    "environment",
    "fabric",
    "gpu",
    "host",
    "imex",
    "kernel",
    "network",
    "node",
    "nvlink",
    "probe",
    "profile",
    "unread",
]
