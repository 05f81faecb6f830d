"""What a running deployment says about itself, as a pure pipeline.

    bytes or rows from a feed  →  events  →  reduce(state, event)  →  build(state, now)  →  View

``engines`` gives the series of a metrics page meaning, ``histogram`` does the arithmetic, ``reducer`` keeps bounded
history, ``view`` is what a screen or a script shows, ``rules`` are the alerts. Everything except ``recording`` is free
of I/O; nothing here knows a terminal toolkit.
"""
