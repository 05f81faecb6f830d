"""What the live screen and its plain forms read: servers, runs, benchmarks and GPUs as streams of telemetry's events.

``sources``, ``run_source``, ``gpu_source``  the feeds: I/O, no judgement
``rack_source``  the GPUs of a group's other nodes, through ssh
``watch``   which feeds a command wants, and what is served
``plain``   the monitor without a screen: one snapshot, or a line per interval
``export``  the monitor as a page for Prometheus
"""
