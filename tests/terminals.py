"""Real terminals for tests: a process leads a session on one; closing it is like closing a terminal's window."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import termios
from collections.abc import Mapping, Sequence


class Terminal:
    """A terminal, and the process that was started in it."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        finally:
            os.close(theirs)
        os.set_blocking(self._ours, False)
        self.said = ""

    def read(self) -> str:
        """All output so far."""
        try:
            while more := os.read(self._ours, 1 << 16):
                self.said += more.decode(errors="replace")
        except OSError:  # nothing more for now, or nobody is there any more
            pass
        return self.said

    def type(self, keys: bytes) -> None:
        """Type `keys`; \\x03 is Ctrl-C."""
        os.write(self._ours, keys)

    def close(self) -> None:
        """The window is closed: the process gets SIGHUP, and whatever it writes from now on fails."""
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.process.kill()
        self.process.wait()
