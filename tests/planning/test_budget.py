import pytest

from k3ctl.planning import budget


@pytest.mark.parametrize(("running", "scheduled"), [(1, 8185), (32, 7968), (128, 7296), (1024, 1024)])
def test_the_adaptive_budget_takes_slots_of_running_requests_only(running, scheduled):
    slots = budget.draft_slots("eagle3", 8, parallel_drafting=True)
    assert budget.scheduled_tokens(8192, running, slots) == scheduled


@pytest.mark.parametrize(
    ("method", "parallel", "slots"),
    [
        (None, False, 0),
        ("dspark", True, 0),
        ("dflash", True, 0),
        ("mtp", False, 0),
        ("ngram", False, 0),
        ("eagle3", False, 0),
        ("eagle3", True, 7),
        ("draft_model", False, 1),
        ("draft_model", True, 8),
    ],
)
def test_draft_slots_by_method(method, parallel, slots):
    assert budget.draft_slots(method, 8, parallel) == slots


def test_the_budget_never_goes_below_zero():
    assert budget.scheduled_tokens(100, 1000, 7) == 0


@pytest.mark.parametrize(
    ("gib", "name", "tokens", "seqs"),
    [
        (277, "NVIDIA GB300", 16_384, 1024),
        (160, "", 16_384, 1024),
        (140, "NVIDIA H200", 8192, 1024),
        (80, "NVIDIA A100", 2048, 256),
        (120, "NVIDIA GB10", 2048, 256),
        (48, "", 2048, 256),
    ],
)
def test_defaults_follow_the_memory_tier(gib, name, tokens, seqs):
    assert budget.defaults(gib * 2**30, name) == budget.Defaults(tokens, seqs)


def test_throughput_mode_doubles_the_defaults():
    assert budget.defaults(277 * 2**30, performance_mode="throughput") == budget.Defaults(32_768, 2048)


@pytest.mark.parametrize(
    ("drafts", "requests"), [(7, 8), (6, 9), (5, 10), (4, 12), (3, 16), (2, 21), (1, 32), (0, 64)]
)
def test_the_most_requests_that_run_specialized(drafts, requests):
    assert budget.specialized_requests(drafts) == requests


@pytest.mark.parametrize(
    ("concurrency", "drafts"), [(1, 7), (8, 7), (9, 6), (16, 3), (21, 2), (32, 1), (64, 0), (65, None)]
)
def test_the_most_drafts_for_a_concurrency(concurrency, drafts):
    assert budget.most_drafts(concurrency) == drafts


def test_a_decode_graph_holds_whole_requests():
    assert budget.captured_rows(8, 7) == (8, 16, 24, 32, 40, 48, 56, 64)
    assert budget.captured_rows(8, 2)[-1] == 24
    assert budget.captured_rows(64, 0, capture_sizes=(128, 256)) == ()
    assert budget.captured_rows(64, 0, max_capture_size=8) == (1, 2, 4, 8)
