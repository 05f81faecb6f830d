"""Random steps of MLA decode on a GPU, for its tests, bench and sweep."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.kernels.mla.dispatch import MlaDecode
from runtime.kernels.mla.shapes import HEAD, LATENT, NOPE, ROW, VALUE
from runtime.kernels.mla.spec import Context, MlaDecodeSpec

BLOCK = 768  # vLLM's for K3 with BF16 pages


@dataclass(frozen=True)
class Weights:
    """q_norm [R], w_qb [N 192, R], kv_norm [512], kv_b [N, 256, 512], all BF16."""

    q_norm: Tensor
    w_qb: Tensor
    kv_norm: Tensor
    kv_b: Tensor

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """As `MlaDecode` takes them."""
        return self.q_norm, self.w_qb, self.kv_norm, self.kv_b[:, :NOPE], self.kv_b[:, NOPE:]


def random_weights(spec: MlaDecodeSpec, seed: int = 0) -> Weights:
    """Weights of the size of K3's: results of the order of 1."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def rand(*shape, scale=1.0):
        return (torch.randn(shape, device="cuda", generator=generator) * scale).bfloat16()

    return Weights(
        rand(spec.q_rank, scale=0.1) + 1,
        rand(spec.heads * HEAD, spec.q_rank, scale=spec.q_rank**-0.5),
        rand(LATENT, scale=0.1) + 1,
        rand(spec.heads, NOPE + VALUE, LATENT, scale=LATENT**-0.5),
    )


@dataclass
class Step:
    """One step: columns of a projection, pages and tables, a result."""

    q_a: Tensor
    kv_a: Tensor
    gate: Tensor
    context: Context
    out: Tensor

    def run(self, op: MlaDecode, workspace, launch=None) -> Tensor:
        """All four launches."""
        return op(self.q_a, self.kv_a, self.gate, self.context, workspace, self.out, launch=launch)


def random_step(
    spec: MlaDecodeSpec,
    lengths: Sequence[int],
    *,
    block: int = BLOCK,
    seed: int = 0,
    unused: float = float("nan"),
) -> Step:
    """A step of requests with these lengths (this step's tokens included); pages are shuffled, one is nobody's.

    unused: what rows hold that no request has, this step's own included.
    """
    generator = torch.Generator("cuda").manual_seed(seed)
    ranks, rank = spec.ranks, spec.rank
    rows, width = len(lengths) * spec.tokens, spec.heads * VALUE
    held = [max(0, -(-(n - rank) // ranks)) for n in lengths]
    pages = [-(-n // block) for n in held]
    cache = torch.randn(sum(pages) + 1, block, ROW, device="cuda", generator=generator, dtype=torch.bfloat16)
    order = (torch.randperm(sum(pages), device="cuda", generator=generator) + 1).int()
    cache[0] = unused
    table = torch.full((len(lengths), max([1, *pages])), -1, dtype=torch.int32, device="cuda")
    slots: list[int] = []
    for b, n in enumerate(lengths):
        mine = order[sum(pages[:b]) : sum(pages[: b + 1])]
        table[b, : pages[b]] = mine
        first_new = max(0, -(-(n - spec.tokens - rank) // ranks))  # of the rows that this rank holds
        last_page, of_page = mine.tolist()[first_new // block :], first_new - first_new // block * block
        for page in last_page:
            cache[page, of_page:] = unused
            of_page = 0
        names = mine.tolist()
        for position in range(n - spec.tokens, n):
            row, here = position // ranks, position >= 0 and position % ranks == rank
            slots.append(names[row // block] * block + row % block if here else -1)
    projected = torch.randn(
        rows, spec.q_rank + ROW + width, device="cuda", generator=generator, dtype=torch.bfloat16
    )
    q_a, kv_a, gate = projected.split([spec.q_rank, ROW, width], 1)
    context = Context(
        cache,
        table,
        torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        torch.tensor(slots, dtype=torch.int64, device="cuda"),
    )
    out = torch.full((rows, width), float("nan"), device="cuda", dtype=torch.bfloat16)
    return Step(q_a, kv_a, gate, context, out)
