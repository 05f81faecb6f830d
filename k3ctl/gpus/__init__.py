"""GPUs of this host: ``snapshot()`` reads them, ``load()`` reads a saved ``k3ctl.nvml/1`` file."""

from k3ctl.gpus.collect import snapshot
from k3ctl.gpus.files import from_json, load, to_json
from k3ctl.gpus.types import SCHEMA, Gpu, Node, Snapshot
from k3ctl.host.values import Maybe, Refused, known

__all__ = [
    "SCHEMA",
    "Gpu",
    "Maybe",
    "Node",
    "Refused",
    "Snapshot",
    "from_json",
    "known",
    "load",
    "snapshot",
    "to_json",
]
