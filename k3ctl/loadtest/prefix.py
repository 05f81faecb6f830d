"""Empty the server's prefix cache between rungs, where the server offers it, and keep what it said.

vLLM offers ``POST /reset_prefix_cache`` only in its development mode (``VLLM_SERVER_DEV_MODE=1``). It says no while
requests hold blocks, so it is asked again for a moment.
"""

from __future__ import annotations

import time

from k3ctl.server.client import BadAnswer, Client, HttpError

ROUTE = "/reset_prefix_cache"
EMPTIED, NOT_OFFERED, REFUSED, FAILED = "emptied", "not offered", "refused", "failed"
OFF = "off"
"""The server has no prefix cache; it was not asked."""
TRIES = 4
PAUSE_S = 0.5
LIMIT_S = 30.0


def reset(client: Client, *, pause_s: float = PAUSE_S) -> str:
    """Ask; ``emptied``, ``not offered``, ``refused`` (blocks are held) or ``failed`` (no answer, or an error)."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(pause_s)
        try:
            answer = client.json(ROUTE, {}, timeout_s=LIMIT_S)
        except BadAnswer as error:
            return NOT_OFFERED if error.status in (404, 405) else FAILED
        except HttpError:
            return FAILED
        if isinstance(answer, dict) and answer.get("success") is True:
            return EMPTIED
    return REFUSED
