"""Colours. They only repeat what the text already says."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="k3-dark",
    primary="#5fb3ff",
    secondary="#9fb1c4",
    accent="#ffb454",
    success="#7fd962",
    warning="#ffb454",
    error="#ff7676",
    foreground="#dbe3ec",
    background="#0d1218",
    surface="#0d1218",
    panel="#1b2430",
    dark=True,
)
LIGHT = Theme(
    name="k3-light",
    primary="#0a5ca8",
    secondary="#4a5a6a",
    accent="#8a4b00",
    success="#1b6e1b",
    warning="#8a4b00",
    error="#a81c1c",
    foreground="#16202a",
    background="#fbfcfd",
    surface="#fbfcfd",
    panel="#e3e9ef",
    dark=False,
)
CONTRAST = Theme(
    name="k3-contrast",
    primary="#ffffff",
    secondary="#e0e0e0",
    accent="#ffff00",
    success="#00ff00",
    warning="#ffff00",
    error="#ff6060",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#303030",
    dark=True,
)
THEMES = (DARK, LIGHT, CONTRAST)
