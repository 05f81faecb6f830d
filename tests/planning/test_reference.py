import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def pages():
    spec = importlib.util.spec_from_file_location(
        "plan_reference", ROOT / "scripts" / "write_plan_reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PAGES


@pytest.mark.parametrize("name", ["plan-rules.md", "profiles.md", "profile.schema.json"])
def test_the_reference_is_what_the_code_says(name):
    assert (ROOT / "docs" / "reference" / name).read_text() == pages()[name](), (
        "run `python scripts/write_plan_reference.py`"
    )


def test_predicted_capacity_in_profiles_is_the_memory_plans():
    from k3ctl.planning import memory
    from k3ctl.profiles.loader import load_all

    from .building import deployment

    stated = [profile for profile in load_all() if profile.expect.kv_sequences is not None]
    assert len(stated) >= 8
    for profile in stated:
        plan = memory.plan(deployment(profile.name).memory_settings, profile.expect.kv_sequence_tokens)
        assert int(plan.sequences) == profile.expect.kv_sequences, profile.name
