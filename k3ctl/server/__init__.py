"""The server that a command talks to: which one it is, how it is reached, what its pages mean.

``which``       the one meaning of ``--url``, ``--run`` and neither
``client``      HTTP with bounded time and size
``models``      which model a server serves
``prometheus``  reader of ``/metrics``
``witness``     reader of ``/k3/witness`` and of the witness's series

Names of series and the meaning of "stalled" are in ``k3ctl.signals``, because the supervisor needs them too.
"""
