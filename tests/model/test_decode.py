"""plan(): which path a step takes and every reason for it."""

from __future__ import annotations

import pytest

from runtime.model.decode import Batch, DecodeSetup, Kind, Path, Reason, plan

ON = DecodeSetup(requested=True, query_len=4)


def decodes(count: int, query_len: int = 1, context: int = 100) -> Batch:
    drafts = (query_len - 1,) * count
    return Batch((query_len,) * count, (context,) * count, drafts)


@pytest.mark.parametrize(
    ("batch", "setup", "kind", "reasons"),
    [
        (decodes(1), ON, Kind.DECODE, ()),
        (decodes(64), ON, Kind.DECODE, ()),
        (decodes(65), ON, Kind.DECODE, (Reason.TOO_MANY_ROWS,)),
        (decodes(16, 4), ON, Kind.DECODE, ()),
        (decodes(17, 4), ON, Kind.DECODE, (Reason.TOO_MANY_ROWS,)),
        (decodes(2, 3), ON, Kind.DECODE, (Reason.NOT_PLANNED,)),
        (Batch((4, 3), (50, 60), (3, 2)), ON, Kind.DECODE, (Reason.NOT_UNIFORM,)),
        (Batch((1, 4), (50, 60), (-1, 3)), ON, Kind.DECODE, (Reason.NOT_UNIFORM,)),
        (Batch((7,), (7,), (-1,)), ON, Kind.PREFILL, (Reason.PREFILL,)),
        (Batch((1,), (1,)), ON, Kind.PREFILL, (Reason.PREFILL,)),
        (Batch((1, 30), (50, 30)), ON, Kind.MIXED, (Reason.PREFILL,)),
        (Batch((1, 80), (50, 90)), ON, Kind.MIXED, (Reason.PREFILL, Reason.TOO_MANY_ROWS)),
        (Batch((4, 4), (50, 60)), ON, Kind.PREFILL, (Reason.PREFILL,)),
        (Batch((4, 4), (4, 60), (3, 3)), ON, Kind.DECODE, ()),  # a one-token prompt, padded by the scheduler
        (Batch((4, 4), (50, 60), (-1, 3)), ON, Kind.MIXED, (Reason.PREFILL,)),
        (decodes(1), DecodeSetup(requested=False), Kind.DECODE, (Reason.BACKEND_OFF,)),
        (decodes(1), DecodeSetup(requested=True, refused=("LoRA",)), Kind.DECODE, (Reason.REFUSED,)),
        (
            decodes(70),
            DecodeSetup(requested=False, refused=("LoRA",)),
            Kind.DECODE,
            (Reason.BACKEND_OFF, Reason.REFUSED, Reason.TOO_MANY_ROWS),
        ),
    ],
)
def test_a_step_gets_its_path_and_all_its_reasons(
    batch: Batch, setup: DecodeSetup, kind: Kind, reasons: tuple[Reason, ...]
) -> None:
    step = plan(batch, setup)
    assert step.kind is kind
    assert step.reasons == reasons
    assert step.path is (Path.STANDARD if reasons else Path.SPECIALIZED)
    assert step.reason == (reasons[0].value if reasons else "")


def test_a_specialized_step_knows_its_query_length() -> None:
    assert plan(decodes(3, 4), ON).query_len == 4


def test_an_empty_step_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sequence"):
        plan(Batch((), ()), ON)
