"""Wherever a replay has jumped, its state is the one of playing straight to that point."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.telemetry.recording import Recording
from k3ctl.telemetry.reducer import reduce_all
from k3ctl.telemetry.replay import Player
from tests.telemetry.feeding import read

RECORDING = Recording(tuple(read(1000.0 + t, generation_tokens_total=7 * t) for t in range(700)), 0)


@given(st.lists(st.floats(-800, 800), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_seeking_gives_the_state_of_playing_there(jumps: list[float]) -> None:
    player = Player(RECORDING)
    for jump in jumps:
        player.seek(jump)
    straight = reduce_all(event for event in RECORDING.events if event.t <= player.at)
    assert player.state == straight


def test_time_passes_at_the_chosen_speed_and_stands_still_in_pause() -> None:
    player = Player(RECORDING, speed=10.0)
    player.advance(2.0)
    assert player.position_s == 20.0
    player.paused = True
    player.advance(2.0)
    assert player.position_s == 20.0


def test_a_replay_ends_at_its_end_and_starts_at_its_start() -> None:
    player = Player(RECORDING)
    player.seek(1e9)
    assert player.finished
    player.seek(-1e9)
    assert (player.position_s, len(player.state.servers)) == (0.0, 1)
