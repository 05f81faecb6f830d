"""Counts which path every step took: the counters, what fills them on CUDA, and how they leave the worker."""

from runtime.witness.captures import Captures, Content, decide, kernels, record_captures
from runtime.witness.counter import (
    DIRECTORY_ENV,
    FLUSH_PERIOD_S,
    SCHEMA,
    TABLE_SCHEMA,
    Key,
    Witness,
    current,
    directory_from_env,
    install,
    prometheus_samples,
    read_pages,
)

__all__ = [
    "DIRECTORY_ENV",
    "FLUSH_PERIOD_S",
    "SCHEMA",
    "TABLE_SCHEMA",
    "Captures",
    "Content",
    "Key",
    "Witness",
    "current",
    "decide",
    "directory_from_env",
    "install",
    "kernels",
    "prometheus_samples",
    "read_pages",
    "record_captures",
]
