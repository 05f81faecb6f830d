"""Servers that are broken on purpose: a ``proxy`` before a sound server, with one fault (``modes``)."""
