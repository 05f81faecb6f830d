"""MLPerf Endpoints' Kimi K3 agentic benchmark: what its rules say of a server, a curve and the runs on it.

``curve``    the regions of a Pareto curve
``folder``   a run folder as the reference client writes it
``rules``    every rule's word: met, flagged, refused or unknown
``points``   point files, and what a full submission still needs

k3ctl does not run the benchmark: an official point comes from MLPerf's own client, unmodified (rules §2.1.1).
"""
