"""Widgets: each shows a part of a View and holds no other state."""
