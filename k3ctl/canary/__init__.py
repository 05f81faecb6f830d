"""Ten fixed prompts that show whether a server answers sensibly: `prompts` (data), `judge` (pure), `send` (I/O)."""
