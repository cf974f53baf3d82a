"""Codes that log a browser in: the link of `shoal status` holds one instead of the token.

A link stays in the browser's history, so what it holds must be worth nothing afterwards: a code is good once, for some
minutes, and for a session that may only look. Pure: the time comes in.
"""

from __future__ import annotations

import hmac
import secrets

LIFETIME = 600.0  # seconds
MOST = 16  # codes that wait to be used; the oldest makes room


class LoginCodes:
    """The codes that were made and not used."""

    def __init__(self) -> None:
        self._expiry: dict[str, float] = {}  # by code, oldest first

    def make(self, now: float) -> str:
        """A fresh code."""
        while len(self._expiry) >= MOST:
            self._expiry.pop(next(iter(self._expiry)))
        code = secrets.token_urlsafe(16)
        self._expiry[code] = now + LIFETIME
        return code

    def use(self, now: float, shown: str) -> bool:
        """Whether `shown` is a code that is still good; it is not from now on."""
        sent = shown.encode("utf-8", "surrogatepass")
        found = next((code for code in self._expiry if hmac.compare_digest(sent, code.encode())), None)
        return found is not None and self._expiry.pop(found) > now
