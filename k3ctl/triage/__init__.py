"""From an engine's log to its first cause and the one next action.

``records``    one log line → who said what, when (vLLM 0.27 to 0.33, NCCL, torch, kernel log)
``rules``      what is known: patterns, causes, actions, each with its source and its expiry
``detectors``  what no single line shows: slow or hung, stalled, which decode path the graph table admits
``scan``       a stream of lines → incidents, grouped over ranks, consequences under their cause
"""
