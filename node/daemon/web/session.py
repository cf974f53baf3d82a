"""Authentication: programs show the token with every request; a browser shows it, or a code, once and gets a cookie.

Rules:
- A request with the token is accepted whatever its Host header says. All others are refused if that is a foreign name:
  a web page could point its own name at us (DNS rebinding).
- The cookie is not the token but an expiry date with a keyed hash, so it needs no memory, outlives a restart, and is
  invalid after a change of the token. Browsers send it to every port of this machine. So it is named after the node,
  scripts cannot read it, and it grants less than the token: reading and logging out, and no changes.
- A change needs a permit besides the cookie, in the header `Shoal-Permit`. Who shows the token itself at the login gets
  one: another expiry date with a keyed hash. It is no cookie, as whatever listens on another port of this machine would
  get it from the browser, and other pages could cause requests with it. The page keeps it in its memory alone, so it is
  gone with the tab; and instead of the token, because it ends within the hour and opens less: the operations that the
  page offers (`Operation.on_page`). So nobody founds runs, reads or writes files or creates codes with it, and
  of the settings only limits and rules for pausing are changed.
- A request with the cookie must come from our own page, as far as the browser tells.
- A code is created for a caller with the token, and put into a link: see `LoginCodes`. It gives no permit.
- Attempts to log in are limited; secrets are compared in constant time.
- The page's files contain no secret and are served to anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import Any

from aiohttp import web

from shoal.node.api import http
from shoal.node.api.http import failure, host_allowed
from shoal.node.api.operations import OPERATIONS, Handler, Operation, Operations
from shoal.node.daemon.own_settings import AT_ONCE
from shoal.node.daemon.web.actions import PageActions, body_of
from shoal.node.daemon.web.routes import read_body
from shoal.protocol.base.allowance import Allowance
from shoal.protocol.base.errors import LocalError

LIFETIME = 7 * 24 * 3600  # seconds until a browser has to show the token again
PERMIT_LIFETIME = 3600  # seconds until a page has to show the token again before it changes something
CODE_LIFETIME = 600.0  # seconds
MOST_CODES = 16  # unused codes; beyond that the oldest becomes invalid
LOGINS = (10, 0.2)  # wrong tokens and codes: at once, and per second
LOGIN, LOGOUT = "/v1/login", "/v1/logout"
READING = ("GET", "HEAD")
PERMIT = "Shoal-Permit"
OFFERED = {each.name: each for each in OPERATIONS if each.on_page}
ASK_FOR_TOKEN = "show the token of the node's home folder: `Authorization: Bearer <token>`"


class LoginCodes:
    """The unused codes that log a browser in. Pure: the time is passed in.

    The link of `shoal status` contains a code instead of the token, because it stays in the browser's history. A code
    is valid once, for some minutes, and for a session that may only read.
    """

    def __init__(self) -> None:
        self._expiry: dict[str, float] = {}  # by code, oldest first

    def make(self, now: float) -> str:
        """Create a code."""
        while len(self._expiry) >= MOST_CODES:
            self._expiry.pop(next(iter(self._expiry)))
        code = secrets.token_urlsafe(16)
        self._expiry[code] = now + CODE_LIFETIME
        return code

    def use(self, now: float, shown: str) -> bool:
        """Whether `shown` is a valid code; from now on it is not."""
        sent = shown.encode("utf-8", "surrogatepass")
        found = next((code for code in self._expiry if hmac.compare_digest(sent, code.encode())), None)
        return found is not None and self._expiry.pop(found) > now


class AccessControl:
    """Accepts requests with `token`, a code or a cookie; `node` is our PeerID, `host` the name that we listen on.

    What is changed with a permit is noted in `actions`.
    """

    def __init__(self, token: str, node: str, host: str, actions: PageActions) -> None:
        self._token = token.encode()
        self._cookie = f"shoal-{node[-8:]}"
        self._host = host
        self._actions = actions
        self._logins = Allowance(*LOGINS)
        self._codes = LoginCodes()

    def table(self) -> list[web.RouteDef]:
        """The routes for browsers."""
        return [
            web.get(LOGIN, self._is_in),
            web.post(LOGIN, self._log_in),
            web.post(LOGOUT, self._log_out),
        ]

    def handlers(self) -> list[Handler]:
        """The handler of `login_code`."""
        return [Operations.login_code.handled_by(lambda: {"code": self._codes.make(time.monotonic())})]

    @web.middleware
    async def guard(self, request: web.Request, handler: http.Handler) -> web.StreamResponse:
        """The middleware in front of all routes: refuses a request, or passes it on."""
        if self._shows_token(request):
            return await handler(request)
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if request.method in READING or is_public(request.path) or request.path == LOGOUT:
            return await handler(request)
        operation = OFFERED.get(request.match_info.route.name or "")
        if operation is None:
            return failure(403, "the page does not offer this; " + ASK_FOR_TOKEN, "not-allowed")
        if not self._is_signed("change", request.headers.get(PERMIT, "")):
            words = "a browser's session may only look; to change something, type the token of this node"
            return failure(401, words, "wrong-token")
        if not _is_offered(operation, await body_of(request)):
            words = "the page gives no path, and changes limits and rules for pausing only; for others, "
            return failure(403, words + ASK_FOR_TOKEN, "not-allowed")
        return await self._actions.note(operation, request, handler)

    def _shows_token(self, request: web.Request) -> bool:
        return _same(request.headers.get("Authorization", ""), b"Bearer " + self._token)

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Why a request without the token is refused, whatever it asks; None if it may at least look."""
        if not host_allowed(request.headers.get("Host", ""), self._host):
            return failure(403, "the Host header is a foreign name; call the API by its address", "not-allowed")
        if is_public(request.path):
            return None
        if "Authorization" in request.headers or not self._is_open(request):
            return failure(401, ASK_FOR_TOKEN, "wrong-token")
        if not _from_our_page(request):
            words = "a browser's session is for the page of this node; for all else, " + ASK_FOR_TOKEN
            return failure(403, words, "not-allowed")
        return None

    async def _is_in(self, request: web.Request) -> web.Response:
        return web.json_response({"in": self._is_open(request)})

    async def _log_in(self, request: web.Request) -> web.Response:
        if not _from_our_page(request):
            return failure(403, "this login comes from a foreign page", "not-allowed")
        body = await read_body(request, {}, {"token": str, "code": str})
        if len(body) != 1:
            return failure(400, "the body must have a 'token' or a 'code'", LocalError.code)
        if not self._logins.take(time.monotonic()):
            return failure(429, "too many wrong tries; wait a minute", "busy")
        if "code" in body and not self._codes.use(time.monotonic(), body["code"]):
            return failure(
                401, "this link was used before, or is too old: `shoal status` prints another", "wrong-token"
            )
        if "token" in body and not _same(body["token"].strip(), self._token):
            return failure(401, "this is not the token of this node", "wrong-token")
        self._logins.give_back()
        now = int(time.time())
        permit = {"permit": self._sign("change", now + PERMIT_LIFETIME)} if "token" in body else {}
        response = web.json_response({"in": True, **permit})
        cookie = self._sign("page", now + LIFETIME)
        response.set_cookie(self._cookie, cookie, max_age=LIFETIME, httponly=True, samesite="Strict", path="/")
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        response = web.json_response({"in": False})
        response.del_cookie(self._cookie, httponly=True, samesite="Strict", path="/")
        return response

    def _sign(self, use: str, expiry: int) -> str:
        """A date with its keyed hash, as a cookie ("page") or a permit ("change")."""
        return f"{expiry}.{hmac.new(self._token, f'{use} until {expiry}'.encode(), hashlib.sha256).hexdigest()}"

    def _is_signed(self, use: str, shown: str) -> bool:
        """Whether `shown` was made by `_sign` for this use, and has not expired."""
        expiry = shown.partition(".")[0]
        if not (expiry.isascii() and expiry.isdigit() and len(expiry) < 16):
            return False
        return _same(shown, self._sign(use, int(expiry)).encode()) and int(expiry) > time.time()

    def _is_open(self, request: web.Request) -> bool:
        """Whether the request has a cookie of ours that has not expired."""
        return self._is_signed("page", request.cookies.get(self._cookie, ""))


def _is_offered(operation: Operation[Any, Any], body: dict[str, Any]) -> bool:
    """Whether the page offers what a request asks of an operation: no path of a checkpoint, no setting but limits and
    rules for pausing.
    """
    if operation is Operations.change_settings:
        settings = body.get("settings")
        return isinstance(settings, dict) and settings.keys() <= set(AT_ONCE)
    return operation is not Operations.join_run or body.keys() <= {"link", "train"}


def is_public(path: str) -> bool:
    """Whether `path` needs no authentication: the page's files, and the login."""
    return path in ("/", LOGIN) or path.startswith("/page/")


def _same(shown: str, secret: bytes) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), secret)  # JSON may contain lone surrogates


def _from_our_page(request: web.Request) -> bool:
    """Whether a request comes from our page, by its Origin header, or without one, if it only reads, by its site."""
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    if origin is None:
        return request.method in READING and site in ("same-origin", "none")
    return origin == f"http://{request.headers.get('Host', '')}" and site in ("same-origin", "none")
