"""Who may ask, and errors in OpenAI's shape: the middlewares of the server.

Rules: with a key, who shows it is in, and nobody else. Without one, the Host header must be an address or our own
name: a web page could point its own name at us (DNS rebinding). Bodies must say that they are JSON, which a page of
another origin cannot send without asking first, and no CORS header is ever sent.
"""

from __future__ import annotations

import hmac
import logging

from aiohttp import web

from shoal.node.serve.engine import Busy
from shoal.node.serve.faults import CALLER, SERVER, Fault, fault_of
from shoal.node.web.answers import Handler
from shoal.node.web.session import host_allowed
from shoal.protocol.errors import ShoalError

log = logging.getLogger("shoal.serve")


class Guard:
    """Lets in who shows `key`; all who reach us if it is empty. `host` is the name that we listen on."""

    def __init__(self, key: str, host: str) -> None:
        self._key, self._host = key, host

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The middleware in front of all routes."""
        if self._key:
            shown = request.headers.get("Authorization", "").encode("utf-8", "surrogatepass")
            if not hmac.compare_digest(shown, f"Bearer {self._key}".encode()):
                message = "show the server's key: `Authorization: Bearer <key>`"
                raise Fault(401, message, code="invalid_api_key")
        elif not host_allowed(request.headers.get("Host", ""), self._host):
            raise Fault(403, "the Host header is a foreign name; call the server by its address")
        return await handler(request)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What a handler raises, as OpenAI's clients expect it."""
    try:
        return await handler(request)
    except Fault as fault:
        return _answer(fault)
    except Busy as busy:
        response = _answer(Fault(429, str(busy), "rate_limit_error", code="rate_limit_exceeded"))
        response.headers["Retry-After"] = str(busy.retry_after)
        return response
    except web.HTTPRequestEntityTooLarge as error:
        return _answer(Fault(413, f"the body is too large: {error.text}"))
    except web.HTTPException as error:
        return _answer(Fault(error.status, f"{request.method} {request.path[:100]}: {error.reason}", CALLER))
    except ShoalError as error:
        return _answer(fault_of(error))
    except Exception:  # our own mistake: one answer is lost, the server is not
        log.exception("the server failed on %s %s", request.method, request.path)
        return _answer(Fault(500, "the server made a mistake; its log has the details", SERVER))


def _answer(fault: Fault) -> web.Response:
    return web.json_response(fault.body, status=fault.status)
