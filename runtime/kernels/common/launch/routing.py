"""The routing of a step: what `moe_route` writes and `moe_experts` reads."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

GROUP_TOKENS = 8  # of one expert, in one group: the width of a tensor-core tile


@dataclass(frozen=True)
class Routing:
    """Choices of T tokens, k experts each, and the groups of pairs (token, slot) that share an expert.

    weights: [T, k] FP32. ids: [T, k] int32, over all experts; -1 for a padding row. experts: [G] int32, a group's
    expert, counted from `first`. rows: [G, 8] int32, a group's pairs as token * k + slot in the order of tokens; -1 - p
    stands for nobody and names a pair p of the same group. count: [1] int32, groups in use. first, local: the experts
    of this rank are first … first + local - 1; pairs of other experts are in no group.

    Groups are in the order of experts; all but the last of an expert are full.
    """

    weights: Tensor
    ids: Tensor
    experts: Tensor
    rows: Tensor
    count: Tensor
    first: int
    local: int

    def of(self, tokens: int) -> "Routing":
        """The same buffers for a step of `tokens` tokens; ValueError if they hold fewer."""
        if tokens > self.ids.shape[0]:
            raise ValueError(f"the routing buffers hold {self.ids.shape[0]} tokens, the step has {tokens}")
        return replace(self, weights=self.weights[:tokens], ids=self.ids[:tokens])


def empty_routing(tokens: int, top_k: int, device: torch.device | str, *, first: int, local: int) -> Routing:
    """Buffers for at most `tokens` tokens, with no group."""
    pairs = tokens * top_k  # every pair may be a group of its own

    def table(*shape):
        return torch.zeros(shape, dtype=torch.int32, device=device)

    weights = torch.zeros(tokens, top_k, device=device)
    return Routing(
        weights,
        table(tokens, top_k) - 1,
        table(pairs),
        table(pairs, GROUP_TOKENS),
        table(1),
        first,
        local,
    )


def group_pairs(ids: Tensor, weights: Tensor, *, first: int, local: int) -> Routing:
    """The routing of given choices: the definition of the groups, in PyTorch, for tests and other routers.

    ids: [T, k] integers; negative ones, and those of other ranks, are in no group. weights: [T, k].
    """
    tokens, top_k = ids.shape
    routing = empty_routing(tokens, top_k, ids.device, first=first, local=local)
    routing.ids.copy_(ids)
    routing.weights.copy_(weights)
    pairs: dict[int, list[int]] = {}
    for pair, expert in enumerate(ids.flatten().tolist()):
        if first <= expert < first + local:
            pairs.setdefault(expert - first, []).append(pair)
    groups = [
        (expert, members[start : start + GROUP_TOKENS])
        for expert, members in sorted(pairs.items())
        for start in range(0, len(members), GROUP_TOKENS)
    ]
    if groups:
        routing.experts[: len(groups)] = ids.new_tensor([expert for expert, _ in groups], dtype=torch.int32)
        filled = [members + [-1 - members[-1]] * (GROUP_TOKENS - len(members)) for _, members in groups]
        routing.rows[: len(groups)] = ids.new_tensor(filled, dtype=torch.int32)
    routing.count.fill_(len(groups))
    return routing
