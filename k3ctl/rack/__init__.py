"""Several nodes started, watched and stopped as one, over OpenSSH.

    lead (operator's terminal)  ── ssh ──►  member (one a node)  ── owns ──►  reaper, supervisor, vLLM
      │  group.json                            │  tether: a beat every second, in both directions
      └─ ps, logs, stop, triage ── ssh ──►  k3ctl ps, logs, stop, triage of each node

``wire``      the lines that lead and member exchange
``tether``    the member's end: what it hears, and when it has heard nothing for too long
``channel``   the lead's end: one ssh
``about``     what a node tells of itself before anything starts
``agree``     what must be alike, and what must differ (pure)
``lead``      start, watch, stop
``story``     which node was first (pure)
``record``    ``group.json``, which later commands read
``remote``    later commands, sent to every node of a group
``tunnel``    a way to a server on node 0's loopback

A node's engine is an ordinary run of that node, with its rank. The member owns it as ``k3ctl serve`` does, so whatever
ends the member ends the run; the supervisors' own connection (``engine.peers``) ends the other nodes'.
"""
