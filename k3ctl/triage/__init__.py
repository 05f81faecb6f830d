"""From an engine's log to its first cause and the one next action.

``reader``     the lines of a file that can matter, in bounded memory
``carriers``   what a launcher, container runtime or journal put around a line, taken off
``records``    one log line → who said what, when (vLLM 0.27 to 0.33, NCCL, torch, kernel)
``facts``      what the log says about itself: arguments, versions, GPUs; the conditions of rules
``rules``      what is known: patterns, causes, actions, each with its source, its role and its expiry
``patterns``   regular expressions bounded, and found by their literals
``detectors``  what no single line shows: slow or hung, silent ranks, boards, decode path
``derive``     values for a rule's texts that no pattern holds
``ending``     what it means that a log ends
``story``      which incident is the cause, and what follows from it
``scan``       all of it over a stream of lines
"""
