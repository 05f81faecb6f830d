"""What the pages about profiles state follows from the code."""


def test_predicted_capacity_in_profiles_is_the_memory_plans():
    from k3ctl.planning import memory
    from k3ctl.profiles.loader import load_all

    from .building import deployment

    stated = [profile for profile in load_all() if profile.expect.kv_sequences is not None]
    assert len(stated) >= 8
    for profile in stated:
        plan = memory.plan(deployment(profile.name).memory_settings, profile.expect.kv_sequence_tokens)
        assert int(plan.sequences) == profile.expect.kv_sequences, profile.name
