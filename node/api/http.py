"""What our HTTP servers share: errors as JSON that says whose fault they are, and the headers of every response.

The content security policy lets the page load only what this node serves: no inline script or style, no other host, no
frame around it. Every response has it, so that none can be abused as a page.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from shoal.node.api.errors import status_and_blame
from shoal.node.base.refusals import refusal
from shoal.node.base.room import NoRoom
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.net.system.version import agent, shoal_version

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect")),
        "img-src 'self' data:",
        *(f"{what} 'none'" for what in ("base-uri", "form-action", "frame-ancestors")),
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Shoal-Version": shoal_version(),
    "Server": agent(),
}

log = logging.getLogger("shoal.api")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add HEADERS to a response; for `on_response_prepare`."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


def failure(status: int, message: str, code: str, blame: str = "caller") -> web.Response:
    """An error response with its code and its blame."""
    return web.json_response({"error": message, "blame": blame, "code": code}, status=status)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A middleware that answers what a handler raises with a fitting status and words."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return failure(error.status, error.reason, "no-such-request")
    except ShoalError as error:
        status, blame = status_and_blame(error)
        return failure(status, str(error), error.code, blame)
    except Exception as error:  # a refusal of the system, or a bug: this request fails, the node goes on
        if (said := refusal(error)) is not None:
            log.error("%s %s: %s", request.method, request.path, said, extra={"code": said.code})
            return failure(507 if isinstance(said, NoRoom) else 500, str(said), said.code, blame="machine")
        log.exception("the API failed on %s %s", request.method, request.path)
        return failure(500, "the node made a mistake; its log has the details", "bug", blame="node")


def host_allowed(header: str, host: str) -> bool:
    """Whether a Host header is an IP address, `localhost` or the name that we listen on.

    Other names are refused because of DNS rebinding, which is impossible with addresses.
    """
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    name = name.removeprefix("[").removesuffix("]").lower()
    if name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
