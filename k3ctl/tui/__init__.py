"""Live screens (Textual)."""
