"""Building blocks of the GPU tests: guarded and poisoned buffers, graph replay under jitter, errors in ulps."""

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

GUARD_BYTES = 4096
_PATTERN = 0xA5


class Guarded:
    """Tensors with a patterned guard region on both sides; `check` raises if a guard was written."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device
        self._guards: list[tuple[str, Tensor]] = []

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Return a contiguous copy of `value` between two guards, aligned to 16 bytes."""
        size = value.numel() * value.element_size()
        padded = -(-size // 16) * 16
        raw = torch.full(
            (GUARD_BYTES + padded + GUARD_BYTES,), _PATTERN, dtype=torch.uint8, device=self._device
        )
        self._guards += [(f"before {name}", raw[:GUARD_BYTES]), (f"after {name}", raw[GUARD_BYTES + size :])]
        inner = raw[GUARD_BYTES : GUARD_BYTES + size].view(value.dtype).view(value.shape)
        return inner.copy_(value)

    def poisoned(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """A guarded tensor full of NaN."""
        return self(name, torch.full(tuple(shape), float("nan"), dtype=dtype, device=self._device))

    def check(self) -> None:
        """Raise AssertionError for every guard that no longer has its pattern."""
        torch.cuda.synchronize()
        touched = [name for name, guard in self._guards if not bool((guard == _PATTERN).all())]
        assert not touched, f"written out of bounds: {', '.join(touched)}"


def replayed_bits(
    run: Callable[[], object], reset: Callable[[], object], results: Sequence[Tensor], replays: int = 200
) -> None:
    """Replay `run` from a CUDA graph under random delays; raise AssertionError unless all bits always agree.

    reset: restores every input before a replay (not captured). results: what `run` writes. Each of a few graphs has
    its own random delays before `run`, and another stream keeps the memory system busy now and then, so that the
    order in which CTAs and kernels meet changes from replay to replay.
    """
    reset()
    run()  # compiles what is not compiled yet
    torch.cuda.synchronize()
    expected = _eager_bits(run, reset, results)
    graphs = [_delayed_graph(run, random.Random(seed)) for seed in range(4)]
    noise_stream, noise = torch.cuda.Stream(), torch.empty(1 << 24, device=results[0].device)
    generator = random.Random(0)
    for number in range(replays):
        reset()
        if generator.random() < 0.5:
            with torch.cuda.stream(noise_stream):
                noise.add_(1.0)
        torch.cuda._sleep(generator.randrange(20_000))
        graphs[number % len(graphs)].replay()
        torch.cuda.synchronize()
        for index, (result, bits) in enumerate(zip(results, expected, strict=True)):
            assert torch.equal(_bits(result), bits), f"replay {number}: result {index} differs"


def _eager_bits(run, reset, results):
    reset()
    run()
    torch.cuda.synchronize()
    return [_bits(result).clone() for result in results]


def _delayed_graph(run, generator):
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        torch.cuda._sleep(generator.randrange(5_000))
        run()
        torch.cuda._sleep(generator.randrange(5_000))
    return graph


def _bits(tensor: Tensor) -> Tensor:
    whole = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.contiguous().view(whole)


def relative_error(result: Tensor, exact: Tensor) -> float:
    """‖result - exact‖ / ‖exact‖ in FP64; NaN if the result holds one."""
    return float((result.double() - exact.double()).norm() / exact.double().norm())


def bf16_ulps(result: Tensor, exact: Tensor) -> float:
    """Largest error in units of the last BF16 place of the exact value (of 2^-10 for values below it)."""
    place = torch.exp2(torch.floor(torch.log2(exact.double().abs().clamp_min(2.0**-10))) - 7)
    return float(((result.double() - exact.double()).abs() / place).max())
