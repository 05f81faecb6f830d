"""Offline: text captures of the usual tools, as readings like the live ones."""

from k3ctl.checks.captures.folder import read_folder

__all__ = ["read_folder"]
