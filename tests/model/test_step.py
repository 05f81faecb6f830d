"""The loop over slots, how slots are chosen, and a proof of every promise of overlap from reads and writes."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from runtime.kernels.common.launch.overlap import Overlap
from runtime.model.providers import kda, mix, moe
from runtime.model.step import Launch, LayerSlots, Residual, Slot, SlotChoice, overlaps, run

# ---- the loop ---------------------------------------------------------------------------------------------


def slots(index: int, starts_block: bool, seen: list[str]) -> LayerSlots:
    """A layer that notes its calls and does arithmetic that tells every order apart."""

    def mixing(name: str):
        def call(r: Residual):
            seen.append(f"{name}{index}")
            prefix = r.prefix if r.delta is None else r.prefix + r.delta
            return prefix * 2, Residual(prefix, None, r.blocks + prefix if starts_block else r.blocks)

        return call

    def block(name: str, factor: float):
        def call(x: torch.Tensor) -> torch.Tensor:
            seen.append(f"{name}{index}")
            return x * factor + index

        return call

    return LayerSlots(
        index, starts_block, mixing("mix"), block("attend", 3), mixing("mix again"), block("feed", 5)
    )


def test_the_loop_is_four_calls_a_layer_and_the_formulas_of_the_model() -> None:
    seen: list[str] = []
    one = torch.ones(1, 1)
    after: list[tuple[int, float]] = []
    layers = [slots(0, True, seen), slots(1, False, seen)]
    end = run(layers, Residual(one, None, one * 0), lambda i, r: after.append((i, float(r.delta))))
    assert seen == [f"{name}{i}" for i in (0, 1) for name in ("mix", "attend", "mix again", "feed")]
    # by hand: layer 0 restarts the prefix with its attention, layer 1 adds what is pending
    attention0 = 1 * 2 * 3 + 0
    fed0 = attention0 * 2 * 5 + 0
    prefix1 = attention0 + fed0
    attention1 = prefix1 * 2 * 3 + 1
    prefix2 = prefix1 + attention1
    fed1 = prefix2 * 2 * 5 + 1
    assert (float(end.prefix), float(end.delta)) == (prefix2, fed1)
    assert float(end.blocks) == 1 + attention0
    assert after == [(0, fed0), (1, fed1)]


# ---- the choice of slots ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["none", "mix", "mix,attend", "mix@0-3,attend@5", "attend@0+2-4+9", "attend_mla,feed_forward@7"]
)
def test_a_choice_reads_its_own_label(text: str) -> None:
    assert SlotChoice.parse(text).label == text
    assert SlotChoice.parse(SlotChoice.parse(text).label) == SlotChoice.parse(text)


def test_order_and_spaces_do_not_matter() -> None:
    assert SlotChoice.parse(" attend@3+1-2 , mix ") == SlotChoice.parse("mix,attend@1-3")
    assert SlotChoice.parse("all") == SlotChoice.parse("mix,attend,feed_forward")


def test_the_last_mixture_is_ours_only_if_all_are() -> None:
    assert SlotChoice.parse("mix").ours(Slot.MIX, None)
    assert not SlotChoice.parse("mix@0-99").ours(Slot.MIX, None)
    chosen = SlotChoice.parse("attend@1-2")
    assert [chosen.ours(Slot.ATTEND, i) for i in range(4)] == [False, True, True, False]
    assert not chosen.ours(Slot.MIX, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no slots are named"),
        ("attention", "unknown slot 'attention'; known are mix, attend, attend_mla, feed_forward"),
        ("mix,mix", "'mix' is named twice"),
        ("mix@", "layers are numbers"),
        ("mix@3-1", "got '3-1'"),
        ("mix@a", "got 'a'"),
        ("none,mix", "unknown slot 'none'"),
    ],
)
def test_a_wrong_choice_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        SlotChoice.parse(text)


# ---- promises of overlap ----------------------------------------------------------------------------------
#
# The proof shares nothing with ``overlaps``. A kernel starts when the one before it triggers: at its start if it
# triggers early, after its own wait if it is ours and does not, at any time if it is not ours. A wait ends when the
# kernel before has ended, and every kernel waits. So when kernel i starts, all up to ``ended[i]`` have ended:


def ended(launches: list[Launch], promises: list[Overlap]) -> list[int]:
    found = [-1]  # the step before has ended: graphs do not overlap
    for i in range(1, len(launches)):
        keeps_rule = launches[i - 1].ours and not promises[i - 1].early_trigger
        found.append(i - 2 if keeps_rule else found[i - 1])
    return found


def broken(launches: list[Launch], promises: list[Overlap]) -> list[str]:
    """Every promise that some order of events breaks."""
    found, done = [], ended(launches, promises)
    for i, (launch, promise) in enumerate(zip(launches, promises, strict=True)):
        if promise.settled:
            writers = [j for j in range(i) if launches[j].writes & launch.state]
            unknown = [j for j in range(i) if not launches[j].ours and j > done[i]]
            if not launch.ours or (writers and max(writers) > done[i]) or unknown:
                found.append(f"{i} {launch.op}: settled")
        if promise.early_trigger:
            after = i + 1
            # the next one starts before this one has waited: it may read nothing but weights until its own wait
            if (
                not launch.ours
                or after == len(launches)
                or not launches[after].ours
                or promises[after].settled
            ):
                found.append(f"{i} {launch.op}: early trigger")
    return found


def chain(
    layers: int, *, kinds: str, block: int, ours: set[str], tp: bool, last: bool = True
) -> list[Launch]:
    """The launches of a model: ``kinds`` repeats `k` (KDA) and `m` (MLA); ``ours``: `mix` and `attend` per layer."""
    found = [Launch("embedding", None, ours=False)]

    def mixture(i: int | None, write: int | None, delta: bool) -> None:
        tensor = torch.empty(0)
        site = mix.MixSite(i, 1, write, delta, tensor, tensor, None, 1e-5, 1e-5)
        name = "last" if i is None else f"mix{i}"
        found.append(site.launch if name in ours else Launch("stock mix", i, ours=False))

    for i in range(layers):
        starts = i % block == 0
        mixture(i, i // block if starts else None, i > 0)
        if kinds[i % len(kinds)] == "k" and f"attend{i}" in ours:
            found += kda.launches(i, starts)
            if tp:
                found.append(Launch("all_reduce", i, ours=False))
        else:
            found.append(Launch("stock attend", i, ours=False))
        mixture(i, None, not starts)
        if i > 0 and f"feed{i}" in ours:
            found += moe.launches(i)
        else:
            found.append(Launch("stock feed_forward", i, ours=False))
    if last:
        mixture(None, None, True)
    return found


EVERYTHING = {f"{name}{i}" for i in range(8) for name in ("mix", "attend", "feed")} | {"last"}


@pytest.mark.parametrize("tp", [False, True])
@pytest.mark.parametrize("kinds", ["k", "m", "kkkm"])
def test_promises_hold_where_all_slots_are_ours(kinds: str, tp: bool) -> None:
    launches = chain(8, kinds=kinds, block=3, ours=EVERYTHING, tp=tp)
    assert broken(launches, overlaps(launches)) == []


def test_promises_hold_for_every_mixture_of_slots() -> None:
    pick = random.Random(3)
    for trial in range(400):
        ours = {name for name in EVERYTHING if pick.random() < 0.6}
        launches = chain(
            8,
            kinds=pick.choice(["k", "m", "km", "kkkm"]),
            block=pick.choice([1, 2, 3, 12]),
            ours=ours,
            tp=trial % 2 == 0,
        )
        assert broken(launches, overlaps(launches)) == [], ours


def test_the_promises_of_a_kda_layer() -> None:
    launches = chain(2, kinds="k", block=12, ours=EVERYTHING - {"feed1"}, tp=False)
    said = [(x.op, p.settled, p.early_trigger) for x, p in zip(launches, overlaps(launches), strict=True)]
    assert said[7:12] == [
        ("attn_res", False, True),  # the MoE before it is not ours
        ("in_projection", False, False),
        ("kda_decode", True, True),
        ("o_proj", False, False),
        ("attn_res", True, False),
    ]
    # in a layer that starts a block the prefix is what o_proj has just written
    assert said[5] == ("attn_res", False, False)
    # a sum over the group stands between o_proj and the mixture
    over_group = chain(2, kinds="k", block=12, ours=EVERYTHING, tp=True)
    promised = overlaps(over_group)
    assert [p.settled for x, p in zip(over_group, promised, strict=True) if x.op == "attn_res"] == [False] * 5


def test_the_promises_of_a_moe_block() -> None:
    launches = chain(3, kinds="k", block=12, ours=EVERYTHING, tp=False)
    promised = dict(zip(((x.op, x.layer) for x in launches), overlaps(launches), strict=True))
    # the mixture before the router is followed by a kernel that reads only weights early
    assert promised["attn_res", 1] == Overlap(settled=True, early_trigger=True)
    # the groups were written two kernels before
    assert promised["moe_experts", 1] == Overlap(settled=True, early_trigger=False)
    close = [x for x in launches if x.op not in ("latent_down", "shared_down")]
    assert (
        dict(zip(((x.op, x.layer) for x in close), overlaps(close), strict=True))["moe_experts", 1]
        == Overlap()
    )


def wrong_rules() -> dict[str, list[Overlap]]:
    """What ``overlaps`` would say with one of its conditions left out, on a chain that needs it."""
    launches = chain(4, kinds="kkkm", block=3, ours=EVERYTHING, tp=False)
    over_group = chain(4, kinds="kkkm", block=3, ours=EVERYTHING, tp=True)

    def rule(
        chain_: list[Launch],
        *,
        ours: bool = True,
        writes: bool = True,
        trigger: bool = True,
        state: bool = True,
    ):
        found: list[Overlap] = []
        for i, x in enumerate(chain_):
            before, after = chain_[i - 1] if i else None, chain_[i + 1] if i + 1 < len(chain_) else None
            settled = (
                before is not None and (before.ours or not ours) and not (writes and x.state & before.writes)
            )
            settled = settled and not (trigger and found[i - 1].early_trigger)
            early = after is not None and (after.ours or not ours) and (not after.state or not state)
            found.append(Overlap(settled, early) if x.ours and x.state else Overlap())
        return chain_, found

    return {
        "neighbours that are not ours": rule(launches, ours=False),
        "a collective between": rule(over_group, ours=False),
        "what the neighbour writes": rule(launches, writes=False),
        "state of the next one": rule(
            [Launch(op, 0, state=frozenset(op), writes=frozenset(op)) for op in "abc"],
            trigger=False,
            state=False,
        ),
    }


@pytest.mark.parametrize("left_out", sorted(wrong_rules()))
def test_the_proof_sees_a_rule_that_leaves_something_out(left_out: str) -> None:
    assert broken(*wrong_rules()[left_out])


def test_the_proof_sees_every_single_promise_too_many() -> None:
    """Promises that were not made may not be made: one by one, they break (or nobody could have used them)."""
    launches = chain(4, kinds="kkkm", block=3, ours=EVERYTHING, tp=False)
    promised = overlaps(launches)
    for i, launch in enumerate(launches):
        if not (launch.ours and launch.state):
            continue
        for more in (Overlap(True, promised[i].early_trigger), Overlap(promised[i].settled, True)):
            if more != promised[i]:
                assert broken(launches, [*promised[:i], more, *promised[i + 1 :]]), (i, launch.op, more)


def test_no_launch_without_state_is_promised_anything() -> None:
    for tp, block in itertools.product((False, True), (1, 3)):
        launches = chain(5, kinds="km", block=block, ours=EVERYTHING, tp=tp)
        for launch, promise in zip(launches, overlaps(launches), strict=True):
            if not launch.state or not launch.ours:
                assert promise == Overlap()
