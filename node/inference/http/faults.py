"""What went wrong with a request, in OpenAI's shape: {"error": {message, type, param, code}}."""

from __future__ import annotations

from typing import Any

from shoal.node.inference.engine.engine import Stopping
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError

UNSUPPORTED = "unsupported_parameter"
TOO_LONG = "context_length_exceeded"
CALLER, SERVER = "invalid_request_error", "server_error"


class Fault(Exception):
    """An answer that is none: its status, and what to say."""

    def __init__(
        self, status: int, message: str, kind: str = CALLER, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class BadRequest(Fault):
    """The client's mistake."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(400, message, CALLER, param, code)


def fault_of(error: ShoalError) -> Fault:
    """What a client is told of an error that came while its request was worked on."""
    if isinstance(error, Stopping):
        return Fault(503, str(error), SERVER, code="stopping")
    if isinstance(error, LocalError):
        return Fault(500, str(error), SERVER)
    blame = "peer" if isinstance(error, RemoteError) else "network"
    return Fault(502, str(error), SERVER, code=blame)
