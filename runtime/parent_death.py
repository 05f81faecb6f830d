"""A process of the engine ends with the one that started it, however that one ended.

vLLM's processes stop each other by signals and messages, which a killed process no longer sends: after `kill -9` of
the API server, the engine core and the workers go on and keep their GPUs. The kernel's parent-death signal needs
nobody's help. k3ctl's launches ask for it (``K3_END_WITH_PARENT``); other users of the plugin keep what vLLM does.
Standard library only.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

ENV = "K3_END_WITH_PARENT"
_PR_SET_PDEATHSIG = 1


def follow() -> None:
    """Have this process killed when its parent ends; ends it now if that has happened already.

    Only processes that ``multiprocessing`` started: the engine core, workers, further API servers. The signal comes
    when the thread that started the process ends; vLLM starts them from main threads, which live as long as they do.
    """
    parent = multiprocessing.parent_process()
    if parent is None or not os.environ.get(ENV):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent.pid != os.getppid() and not parent.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)
