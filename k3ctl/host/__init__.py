"""The host beside its GPUs: limits, disks, environment, services, kernel log, versions."""

from k3ctl.host.facts import collect
from k3ctl.host.types import SCHEMA, Host

__all__ = ["SCHEMA", "Host", "collect"]
