"""The vLLM process: launch it, watch it, stop it, find it again.

    launch.start()  ── spawns ──►  reaper  ── forks ──►  supervisor  ── starts ──►  vLLM
        ▲                            │ waits, then clears        │ log, readiness, watch, stop
        └────── run.json, engine.log ┴───────────────────────────┘

``command``     the engine's command line and environment, start-up limits
``launch``      front end: preflight, run directory, environment, start, wait until ready
``reaper``      waits for the supervisor to end in whatever way, then leaves no process and no segment behind
``supervisor``  pumps the log, decides when the server is ready, watches it, stops it gracefully
``territory``   everything a run holds on a machine: processes, shared-memory segments, scratch directories
``rundir``      the run directory, the only thing that all of them and later commands share
``logs``        the engine's log in parts of bounded size, read as one
``prune``       which directories of ended runs may go
``peers``       the other nodes' supervisors: one fails, all stop
``watch``       is it alive, does it get on

``reaper`` and what it imports use the standard library only: they outlive every other part.
"""
