"""What all routes share: the variants of their paths, who may call them, and errors in OpenAI's shape.

Rules:
- With a key, only clients that show it are served. Without one, the Host header must be an address or the server's own
  name, as a web page could point its own name at this address (DNS rebinding).
- Bodies must be declared as JSON, which a page of another origin cannot send without asking first (CORS). With a key
  all pages may call that show it; without one, none.
- Clients expect routes below a base URL with or without /v1, and with or without extra slashes.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable

from aiohttp import web

from shoal.node.api.http import Handler, host_allowed
from shoal.node.base.refusals import refusal
from shoal.node.inference.engine.engine import Busy
from shoal.node.inference.http.answers import LOST
from shoal.node.inference.http.errors import CALLER, SERVER, ApiError, api_error
from shoal.protocol.base.errors import ShoalError

BASE = "/v1"
OTHERS = ("/metrics",)  # routes that are not below BASE
log = logging.getLogger("shoal.serve")


def with_variants(table: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """The routes, with all variants of the paths below BASE that clients use."""
    return [web.RouteDef(each.method, path, each.handler, each.kwargs) for each in table for path in _paths(each.path)]


def canonical_path(path: str) -> str:
    """The path of which `path` is a variant."""
    bare = path.replace("//", "/").rstrip("/")
    return bare if bare.startswith((f"{BASE}/", *OTHERS)) else f"{BASE}{bare}"


def _paths(path: str) -> list[str]:
    if not path.startswith(f"{BASE}/"):
        return [path]
    rest = path.removeprefix(BASE)
    ends = ("",) if rest.endswith("}") else ("", "/")
    return [f"{begin}{rest}{end}" for begin in (BASE, f"{BASE}/", "") for end in ends]


class Guard:
    """Checks callers, by the rules above. `key` is empty if none is required; `host` is the name that we listen on."""

    def __init__(self, key: str, host: str) -> None:
        self._key, self._host = key, host

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The middleware in front of all routes."""
        if self._key:
            if request.method == "OPTIONS":  # a browser asks before it sends the key of its page
                return await self._options(request, handler)
            if not any(hmac.compare_digest(each, self._key.encode()) for each in _shown(request)):
                message = "show the server's key: `Authorization: Bearer <key>`"
                raise ApiError(401, message, code="invalid_api_key")
        elif not host_allowed(request.headers.get("Host", ""), self._host):
            raise ApiError(403, "the Host header is a foreign name; call the server by its address")
        return await (self._options(request, handler) if request.method == "OPTIONS" else handler(request))

    async def share(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`: with a key, pages of other origins may read the answers."""
        if self._key and "Origin" in request.headers:
            response.headers["Access-Control-Allow-Origin"] = "*"
            response.headers["Access-Control-Expose-Headers"] = f"{LOST}, Retry-After"

    async def _options(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The methods of a path, and whether a page of another origin may call them."""
        found = request.match_info.http_exception
        if not isinstance(found, web.HTTPMethodNotAllowed):
            return await handler(request)  # there is nothing at this path
        methods = ", ".join(sorted({*found.allowed_methods, "OPTIONS"}))
        if (wanted := request.headers.get("Access-Control-Request-Method")) is None:
            return web.Response(status=204, headers={"Allow": methods})
        if not self._key:
            message = "pages of other origins may ask only a server that has a key, which they show: see --api-key"
            raise ApiError(403, f"{wanted[:20]} {request.path[:100]}: {message}")
        allowed = {
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": request.headers.get(
                "Access-Control-Request-Headers", "authorization, content-type"
            ),
            "Access-Control-Allow-Private-Network": "true",
            "Access-Control-Max-Age": "600",
        }
        return web.Response(status=204, headers=allowed)


def _shown(request: web.Request) -> list[bytes]:
    """The keys in a request's headers, in the ways of different clients."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    found = [key.strip()] if scheme.lower() == "bearer" else []
    found += [request.headers[name] for name in ("api-key", "x-api-key") if name in request.headers]
    return [each.encode("utf-8", "surrogatepass") for each in found]


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions of handlers into error responses."""
    try:
        return await handler(request)
    except ApiError as error:
        return _answer(error)
    except Busy as busy:
        response = _answer(ApiError(429, str(busy), "rate_limit_error", code="rate_limit_exceeded"))
        response.headers["Retry-After"] = str(busy.retry_after)
        return response
    except web.HTTPRequestEntityTooLarge as error:
        return _answer(ApiError(413, f"the body is too large: {error.text}"))
    except web.HTTPNotFound:
        return _answer(
            ApiError(404, f"there is no {request.path[:100]} here, but {', '.join(_offered(request.app))}", CALLER)
        )
    except web.HTTPMethodNotAllowed as error:
        allowed = " or ".join(sorted(error.allowed_methods))
        response = _answer(
            ApiError(405, f"{request.path[:100]} is asked by {allowed}, not by {request.method[:20]}", CALLER)
        )
        response.headers["Allow"] = error.headers["Allow"]
        return response
    except web.HTTPException as error:
        return _answer(ApiError(error.status, f"{request.method} {request.path[:100]}: {error.reason}", CALLER))
    except ShoalError as error:
        return _answer(api_error(error))
    except Exception as error:  # a bug: one request fails, and the server goes on
        if (said := refusal(error)) is not None:
            log.error("%s %s: %s", request.method, request.path, said, extra={"code": said.code})
            return _answer(ApiError(500, str(said), SERVER))
        log.exception("the server failed on %s %s", request.method, request.path)
        return _answer(ApiError(500, "the server made a mistake; its log has the details", SERVER))


def _offered(app: web.Application) -> list[str]:
    """The canonical paths of all routes."""
    return sorted({canonical_path(resource.canonical) for resource in app.router.resources()})


def _answer(error: ApiError) -> web.Response:
    return web.json_response(error.body, status=error.status)
