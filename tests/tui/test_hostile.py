"""What a server, a log or another host says is shown on the screens, never obeyed by the terminal."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from k3ctl.telemetry.view import View
from k3ctl.tui.widgets.line import safe
from tests.tui.test_screens import MODES, app_of

ATTACK = "\x1b]0;owned\x07\x9b2J\u202e"


def poisoned(value: Any) -> Any:
    """The same view with the attack in front of every text that is no word of our own vocabulary."""
    if isinstance(value, str):
        return value if value in KEPT else ATTACK + value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {f.name: poisoned(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(poisoned(item) for item in value)
    return value


KEPT = {
    "up",
    "down",
    "fail",
    "warn",
    "info",
    "running",
    "done",
    "failed",
    "specialized",
    "standard",
    "decode",
    "mixed",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", ["stalled"])
async def test_no_text_of_a_view_reaches_the_terminal_as_it_is(
    scenario: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(scenario)
    async with app.run_test(size=(120, 36)) as pilot:
        await app.action_show(mode)
        await pilot.pause()
        shown: list[View] = []
        screen: Any = app.screen
        real = screen.show
        monkeypatch.setattr(
            screen, "show", lambda view, player: (shown.append(view), real(poisoned(view), player))
        )
        app.redraw()
        await pilot.pause()
        assert shown, "the screen was drawn with the attack in it"
        drawn = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
    assert [repr(char) for char in "\x1b\x07\x9b\u202e" if char in drawn] == []
    assert "␛" in drawn or mode not in ("log", "overview"), "the attack was really there"


def test_styles_stay_where_they_were() -> None:
    from textual.content import Content

    content = Content.assemble(("head\x1b", "bold"), " tail")
    shown = safe(content)
    assert shown.plain == "head␛ tail"
    assert [span.end for span in shown.spans] == [5]
    assert safe("plain") == Content("plain")
