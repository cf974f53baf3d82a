"""Errors of requests to Hugging Face's hub: temporary ones (TransportError) and permanent ones (LocalError)."""

from __future__ import annotations

from shoal.protocol.base.errors import LocalError, ShoalError, TransportError

HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests")  # whose errors need not be OSErrors
RETRY_STATUSES = (408, 429)  # statuses below 500 that ask for another try


def hub_error(what: str, error: Exception) -> ShoalError:
    """The error to raise, whose text begins with `what`: TransportError if a later try may succeed, else LocalError."""
    kind = TransportError if _is_temporary(error) else LocalError
    return kind(f"{what}: {type(error).__name__}: {error}")


def _is_temporary(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in RETRY_STATUSES or status >= 500
    if isinstance(error, FileNotFoundError):  # the hub has no such dataset or file, or (temporary) was not reached
        return type(error).__name__ == "LocalEntryNotFoundError"
    if isinstance(error, PermissionError):  # in our own cache
        return False
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in HTTP_LIBRARIES
