"""Help: keys, and what the figures mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

HELP = """\
[b]Keys[/b]
  1 … 6, tab, shift+tab   screens          ?       this help
  a                       alerts (Log)     t       next theme
  q                       quit             ctrl+p  command palette
  c                       canary: ten prompts to the server, judged for floods, loops, wrong answers
  Replay: space pause · ← → 10 s · shift+← → 1 min · home end · + - speed

[b]Figures[/b]
  tok/s          counter increments over the last 10 s. Output counts generated tokens.
  – (a dash)     not known: the server does not export it, or it has not happened yet.
  p50 p90 p99    over the last 60 s, as the histogram bucket that holds the quantile. The mean
                 beside it is exact. "since start": nothing was observed in the window.
  ITL            time between two output chunks of a request; with speculation one chunk is one
                 verify step of several tokens.
  KV cache       share of cache blocks in use; "full sequences" are of the model's full length.
  specialized    share of decode and mixed steps that ran the specialized path, as counted by
                 the runtime's witness. Without a witness the path is unknown, never guessed.
  rows           query tokens of one decode step: running requests × (K+1). Above 64 no step is
                 specialized.
  acceptance     tokens per verify step, the bonus token included; 1.00 means no draft was
                 ever accepted.
  golden         published acceptance for code with DSpark; other text accepts less.

[b]States[/b]   ● up   ◐ late (not read for 6 s)   ○ waiting (never answered)   ✗ down
"""


class HelpScreen(ModalScreen[None]):
    """Any of the closing keys goes back."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """One scrollable text."""
        with VerticalScroll(id="help") as box:
            box.border_title = "k3ctl monitor"
            box.border_subtitle = "esc closes"
            yield Static(HELP)
