"""What a portal in front of a server does to it: an ASGI middleware (`vllm serve --middleware login_page.LoginPage`).

While the file that $LOGIN_PAGE names exists, paths that begin with a line of it are answered with HTML and 200.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

BODY = b"<!DOCTYPE html>\n<html><body>Please sign in</body></html>\n"


class LoginPage:
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(closed()):
            headers = [(b"content-type", b"text/html"), (b"content-length", str(len(BODY)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": BODY})
        else:
            await self._app(scope, receive, send)


def closed() -> tuple[str, ...]:
    """Beginnings of the paths that the portal keeps."""
    try:
        return tuple(Path(os.environ["LOGIN_PAGE"]).read_text().split())
    except (KeyError, OSError):
        return ()
