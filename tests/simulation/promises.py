"""What the protocol promises, by name, and how a simulation says that one is broken."""

from __future__ import annotations

PROMISES = ("Agreement", "Validity", "All or nothing", "Termination", "Fencing", "Cheap loss", "Held", "Residual")


class Violation(AssertionError):
    """A promise is broken."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
