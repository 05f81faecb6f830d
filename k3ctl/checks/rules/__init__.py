"""The rules, one module per area. Importing this package fills ``finding.RULES``."""

from k3ctl.checks.rules import (
    active,
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
    "active",
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
