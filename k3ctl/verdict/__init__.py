"""Is the specialized decode path really running? Evidence is gathered by ``probe``, judged by ``judge`` (pure)."""
