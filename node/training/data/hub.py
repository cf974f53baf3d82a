"""Errors of requests to the hub: which may pass by themselves, and which will not."""

from __future__ import annotations

from shoal.protocol.base.errors import LocalError, ShoalError, TransportError

# Libraries whose errors are no OSErrors of Python's own.
HTTP = ("httpx", "httpx2", "httpcore", "httpcore2", "requests")
LATER = (408, 429)  # statuses below 500 that ask to come again


def not_had(what: str, error: Exception) -> ShoalError:
    """`what` cannot be had: TransportError if that is the network's fault, or the hub's for now, else LocalError."""
    kind = TransportError if _may_pass(error) else LocalError
    return kind(f"{what}: {type(error).__name__}: {error}")


def _may_pass(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in LATER or status >= 500
    if isinstance(error, FileNotFoundError):  # the hub has no such dataset or file, unless it could not be asked
        return type(error).__name__ == "LocalEntryNotFoundError"
    if isinstance(error, PermissionError):  # of our own cache
        return False
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in HTTP
