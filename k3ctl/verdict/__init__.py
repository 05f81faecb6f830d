"""Is the specialized decode path really running? Evidence is gathered by ``drives``, judged by ``judge`` (pure)."""
