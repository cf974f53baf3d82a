"""Error responses in OpenAI's shape: {"error": {message, type, param, code}}."""

from __future__ import annotations

from typing import Any

from shoal.node.inference.engine.engine import Stopping
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError

UNSUPPORTED = "unsupported_parameter"
TOO_LONG = "context_length_exceeded"
CALLER, SERVER = "invalid_request_error", "server_error"


class ApiError(Exception):
    """An error response: its HTTP status and its body."""

    def __init__(
        self, status: int, message: str, kind: str = CALLER, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class BadRequest(ApiError):
    """The client's mistake, in the parameter `param` if it is in one."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(400, message, CALLER, param, code)


def api_error(error: ShoalError) -> ApiError:
    """The response for an error that came up while a request was worked on."""
    if isinstance(error, Stopping):
        return ApiError(503, str(error), SERVER, code="stopping")
    if isinstance(error, LocalError):
        return ApiError(500, str(error), SERVER)
    blame = "peer" if isinstance(error, RemoteError) else "network"
    return ApiError(502, str(error), SERVER, code=blame)
