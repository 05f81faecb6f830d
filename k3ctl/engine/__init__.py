"""The vLLM process: launch it, watch it, stop it, find it again.

    launch.start()  ── spawns ──►  reaper  ── forks ──►  supervisor  ── starts ──►  vLLM
        ▲                            │ waits, then clears        │ log, readiness, watch, stop
        └────── run.json, engine.log ┴───────────────────────────┘

``launch``      front end: preflight, run directory, environment, start, wait until ready
``reaper``      waits for the supervisor to end in whatever way, then leaves no process and no segment behind
``supervisor``  pumps the log, decides when the server is ready, watches it, stops it gracefully
``territory``   everything a run holds on a machine: processes, shared-memory segments, the socket directory
``rundir``      the run directory, the only thing that all of them and later commands share

``reaper`` and what it imports use the standard library only: they outlive every other part.
"""
