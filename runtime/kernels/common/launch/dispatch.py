"""Choosing an implementation: once per call site, with a reason, and a record of every call.

Automatic choice takes the first variant that can run and says once, in the log, why an earlier one could not. An
explicit request that cannot run raises with all reasons. `strict()` turns every use of a fallback into an error;
tests run under it, so that a fast path that silently stops being taken fails them.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from runtime.kernels.common.launch.device import H200, Device, missing_packages

_logger = logging.getLogger(__name__)
AUTO = "auto"
Table = TypeVar("Table")


class FallbackError(RuntimeError):
    """A fallback was chosen while `strict()` was active."""


@dataclass(frozen=True)
class Variant:
    """One implementation of an operator at one call site.

    refusals: every reason why it cannot run here; empty if it can. reason: why it is preferred over the next one.
    fallback: whether taking it means that the operator's own fast path was not taken.
    """

    name: str
    refusals: tuple[str, ...] = ()
    reason: str = ""
    fallback: bool = False


@dataclass(frozen=True)
class Choice:
    """What was chosen for a call site, and why."""

    op: str
    variant: str
    reason: str
    fallback: bool = field(default=False, compare=False)


_calls: Counter[Choice] = Counter()
_logged: set[tuple[str, str, tuple[str, ...]]] = set()
_strict = [False]


def unmeasured(device: Device, measured_on: Collection[str], requested: str) -> tuple[str, ...]:
    """Why automatic choice does not take a kernel on `device`, though it compiles.

    measured_on: the products on which this operator's kernel has run and was faster than its fallback. A relative of
    one of them is not one of them: an H100 has another memory.
    """
    if requested != AUTO or device.name in measured_on:
        return ()
    return (f"never measured on {device.name}",)


def table_of(tables: Mapping[str, Table], device: Device) -> Table:
    """The launch table of a product; the H200's where a kernel is asked for on one that has none."""
    return tables.get(device.name, tables[H200])


def cute_or_triton(
    op: str, refusals: Sequence[str], device: Device, measured_on: Collection[str], requested: str = AUTO
) -> Choice:
    """Choose among "cute", unless it has `refusals` on `device` or packages are missing, and "triton" (the fallback).

    For operators whose kernel is faster than Triton at every batch where it was measured. Raises as `choose`.
    """
    reasons = (*refusals, *missing_packages("cutlass"), *unmeasured(device, measured_on, requested))
    variants = (
        Variant("cute", reasons, "measured faster than triton at every batch"),
        Variant("triton", missing_packages("triton"), fallback=True),
    )
    return choose(op, variants, requested)


def choose(op: str, variants: Sequence[Variant], requested: str = AUTO) -> Choice:
    """Return the choice among `variants`, given in order of preference.

    Raises ValueError if `requested` is unknown or cannot run, with all reasons; RuntimeError if nothing can run;
    FallbackError under `strict()` if automatic choice would take a fallback.
    """
    if requested != AUTO:
        return _explicit(op, variants, requested)
    skipped = []
    for variant in variants:
        if variant.refusals:
            skipped.append(variant)
            continue
        why = "; ".join(f"{v.name}: {', '.join(v.refusals)}" for v in skipped)
        if variant.fallback and _strict[0]:
            raise FallbackError(f"{op}: would fall back to {variant.name} ({why or variant.reason})")
        _log(op, skipped, variant)
        return Choice(op, variant.name, why or variant.reason, variant.fallback)
    raise RuntimeError(
        f"{op}: no implementation can run: "
        + "; ".join(f"{v.name}: {', '.join(v.refusals)}" for v in skipped)
    )


def _explicit(op, variants, requested):
    for variant in variants:
        if variant.name == requested:
            if variant.refusals:
                raise ValueError(f"{op}: {requested} cannot run here: {'; '.join(variant.refusals)}")
            return Choice(op, requested, "requested", variant.fallback)
    names = ", ".join([AUTO, *(v.name for v in variants)])
    raise ValueError(f"{op}: unknown implementation {requested!r}, expected one of {names}")


def _log(op, skipped, taken):
    for variant in skipped:
        key = (op, variant.name, variant.refusals)
        if key not in _logged:
            _logged.add(key)
            _logger.info(
                "%s: %s instead of %s: %s", op, taken.name, variant.name, "; ".join(variant.refusals)
            )


def record(choice: Choice) -> None:
    """Count one call of a chosen implementation."""
    if choice.fallback and _strict[0]:
        raise FallbackError(f"{choice.op}: called the fallback {choice.variant} ({choice.reason})")
    _calls[choice] += 1


def records() -> dict[Choice, int]:
    """Calls so far, by (op, variant, reason)."""
    return dict(_calls)


def reset() -> None:
    """Forget all records and which rejections have been logged."""
    _calls.clear()
    _logged.clear()


@contextmanager
def strict() -> Iterator[None]:
    """Within the context, choosing or calling a fallback raises FallbackError."""
    before, _strict[0] = _strict[0], True
    try:
        yield
    finally:
        _strict[0] = before
