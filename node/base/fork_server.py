"""A fork server: a process that has imported what many others need, and forks itself for each of them.

Torch and libp2p take seconds of a core to import, in every process anew. `shoal up` starts nodes, workers and jobs by
the dozen, so it has one fork server (client/up/forking.py); a node that it starts finds the server in its environment
and has its worker forked, too. Without a server, and on systems other than Linux, each process imports for itself.

Client and server talk over a Unix socket of packets, one connection for each process. The client sends what to run and
the file for its output; the server answers with the process id, and with the exit code when the process has ended. If
the client closes the connection, or dies, the process is killed, and if the server dies, all of them are. What can be
run is a table of the server's own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import BinaryIO

from shoal.node.base.signals import die_with_parent
from shoal.protocol.net.system.descriptors import raise_limit

FORK_SERVER = "SHOAL_FORK_SERVER"  # the environment's variable with the path of the server's socket
CAN_FORK = sys.platform == "linux" and hasattr(
    os, "pidfd_open"
)  # elsewhere system libraries do not survive a fork, or there is none
MAX_PACKET = 1 << 20  # bytes; the kernel lets a command line with its environment be larger, but not a packet
BACKLOG = 128
ENDS_WITHIN = 2.0  # seconds
IMPORTS_WITHIN = 120.0  # seconds until the first answer of a server that has just been started
ANSWERS_WITHIN = 10.0  # seconds until an answer of one that has imported
SERVER_GONE = -signal.SIGKILL  # the exit code of a process whose server has died


@dataclass(frozen=True, slots=True)
class Program:
    """What a forked process does: the same as `python -P -m module *arguments`."""

    module: str
    arguments: tuple[str, ...]
    environ: dict[str, str]
    folder: str  # where it starts
    name: str  # shown by `ps -o comm` and `top`, up to 15 characters
    leads_session: bool = False

    @staticmethod
    def decode(packet: bytes) -> Program:
        """The program that a client has sent."""
        fields = json.loads(packet)
        return Program(**fields | {"arguments": tuple(fields["arguments"])})

    def encode(self) -> bytes:
        """As it is sent to the server."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def of(argv: Sequence[str], environ: dict[str, str], name: str, *, leads_session: bool = False) -> Program | None:
        """The program of a command line; None unless that is one of a module in this interpreter, and can be forked."""
        match argv:
            case [interpreter, "-P", "-m", module, *arguments] if interpreter == sys.executable and CAN_FORK:
                return Program(module, tuple(arguments), environ, os.getcwd(), name, leads_session)
        return None


# -- the client's side ----------------------------------------------------------------------------------------------


def request(path: str, program: Program, output: int) -> socket.socket:
    """Ask the server at `path` for a process that writes to the descriptor `output`; OSError if it does not answer.

    The connection gets the process id and the exit code, each as a packet of digits.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
        socket.send_fds(connection, [program.encode()], [output])
    except OSError:
        connection.close()
        raise
    return connection


class Forked:
    """A process that the server has forked for us, with the methods of subprocess.Popen that we use."""

    def __init__(self, path: str, program: Program, output: int, patience: float = IMPORTS_WITHIN) -> None:
        """OSError if it cannot be started, or the server has not answered within `patience` seconds."""
        self.returncode: int | None = None
        self._connection = request(path, program, output)
        try:
            self._connection.settimeout(patience)
            self.pid = process_id(self._connection.recv(MAX_PACKET))
            self._connection.settimeout(None)
        except OSError:
            self._connection.close()
            raise

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            with suppress(BlockingIOError):
                self._end(self._connection.recv(MAX_PACKET, socket.MSG_DONTWAIT))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            if not poll.poll(timeout and timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._end(self._connection.recv(MAX_PACKET))
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Have the kernel end it."""
        self.send_signal(signal.SIGKILL)

    def _end(self, packet: bytes) -> None:
        self.returncode = exit_code(packet)
        self._connection.close()


def process_id(packet: bytes) -> int:
    """The process id that the server answers with; OSError with its reason if it could not fork, or has died."""
    if not packet.isdigit():
        raise OSError(packet.decode() or "the fork server has ended")
    return int(packet)


def exit_code(packet: bytes) -> int:
    """The exit code that the server tells at the end; that of a killed process if the server has died."""
    return int(packet) if packet else SERVER_GONE


# -- the owner's side -----------------------------------------------------------------------------------------------


class ForkServer:
    """A server that starts with the first process that it is asked for, and runs until it is closed or we are gone."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log: Path | None = None) -> None:
        """`argv` is a program that calls `serve`; some libraries read `environ` when it imports them.

        What it says goes to the file `log`, or to our stderr.
        """
        self._argv, self._environ, self._log = argv, environ, log
        self._folder = TemporaryDirectory(prefix="shoal-fork-")
        self._path = os.path.join(self._folder.name, "socket")
        self._process: subprocess.Popen[bytes] | None = None
        self._has_imported = False

    def fork(self, program: Program, output: BinaryIO) -> Forked:
        """Start a process that writes to `output`, and can ask this server for others; OSError if it cannot be."""
        program.environ[FORK_SERVER] = self.path
        patience = ANSWERS_WITHIN if self._has_imported else IMPORTS_WITHIN
        forked = Forked(self.path, program, output.fileno(), patience)
        self._has_imported = True
        return forked

    async def ready(self) -> None:
        """Wait until it has imported what its processes need, or has ended: then `fork` does not block.

        Where no process can be forked it is not even started.
        """
        if not CAN_FORK:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            with suppress(OSError):  # it has ended
                connection.connect(self.path)
                connection.send(b"ready")  # a packet without a file: it closes the connection
                await asyncio.get_running_loop().sock_recv(connection, 1)
        self._has_imported = True

    @property
    def path(self) -> str:
        """Of the socket at which it can be asked; started if it is not yet."""
        if self._process is None:
            self._process = self._start()
        return self._path

    @property
    def pid(self) -> int | None:
        """Of the server, None before it is needed."""
        return self._process.pid if self._process is not None else None

    def _start(self) -> subprocess.Popen[bytes]:
        with ExitStack() as open_here:
            listener = open_here.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(self._path)
            listener.listen(BACKLOG)  # so it can be asked at once, and answers when it has imported
            return subprocess.Popen(
                [*self._argv, str(listener.fileno())],
                stdin=subprocess.PIPE,  # that it closes tells the server that we are gone
                stdout=subprocess.DEVNULL,  # ours may be read by a program
                stderr=open_here.enter_context(self._log.open("ab")) if self._log is not None else None,
                pass_fds=[listener.fileno()],
                env=self._environ,
                start_new_session=True,
            )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and every process that it has forked."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(ENDS_WITHIN if self._has_imported else 0)
            except subprocess.TimeoutExpired:  # it is still importing, or hangs
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()


# -- the server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Running:
    """A forked process, and the connection over which it was asked for."""

    pid: int
    leads_session: bool
    connection: socket.socket

    def kill(self) -> None:
        """It is our child and we have not waited for it, so its id is still its own."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self.leads_session:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


Programs = Mapping[str, Callable[[], object]]  # by module; each takes its arguments from sys.argv


def serve(programs: Programs) -> None:
    """Be a fork server that can run `programs`, until its owner is gone; be one of them in each forked process."""
    raise_limit()  # of open files: two for each process
    gc.collect()
    gc.freeze()  # a collection would touch what was imported, and so copy the pages that all processes share
    program = _Server(socket.socket(fileno=int(sys.argv[-1])), programs).serve()
    if program is not None:
        sys.argv = [program.module, *program.arguments]
        programs[program.module]()


class _Server:
    def __init__(self, listener: socket.socket, programs: Programs) -> None:
        self._listener = listener
        self._programs = programs
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}  # by a descriptor that becomes readable when the process ends
        self._of: dict[socket.socket, int] = {}  # the descriptor of a connection's process
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)

    def serve(self) -> Program | None:
        """Fork until the owner is gone: returns None then, and in each forked process the program to run."""
        while True:
            for key, _ in self._selector.select():
                ready = key.fileobj
                if ready == 0:
                    self._kill_all()
                    return None
                if ready is self._listener:
                    self._selector.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif isinstance(ready, socket.socket):
                    if ready.fileno() == -1:  # its process, which has ended, came first
                        continue
                    if (program := self._read(ready)) is not None:
                        return program
                elif isinstance(ready, int):
                    self._reap(ready)

    def _read(self, connection: socket.socket) -> Program | None:
        """Take a request, or the end of a connection; returns the program in the process that is forked for it."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(connection, MAX_PACKET, 1)
        except OSError:
            packet, descriptors = b"", []
        if not packet or not descriptors or connection in self._of:
            self._selector.unregister(connection)
            if connection in self._of:
                self._running[self._of[connection]].kill()
            else:
                connection.close()
            return None
        try:
            program = Program.decode(packet)
            if program.module not in self._programs:
                _answer(connection, f"{program.module} is not a program of this fork server")
                return None
            return program if self._fork(connection, program, descriptors[0]) else None
        finally:
            os.close(descriptors[0])

    def _fork(self, connection: socket.socket, program: Program, output: int) -> bool:
        """Fork; returns True in the new process, which has taken its own place by then."""
        try:
            pid = os.fork()
        except OSError as error:
            _answer(connection, f"the fork server cannot fork: {error}")
            return False
        if pid == 0:
            self._forget()
            _become(program, output, self._pid)
            return True
        ended = os.pidfd_open(pid)
        self._running[ended] = _Running(pid, program.leads_session, connection)
        self._of[connection] = ended
        self._selector.register(ended, selectors.EVENT_READ)
        _answer(connection, str(pid))
        return False

    def _reap(self, ended: int) -> None:
        running = self._running.pop(ended)
        running.kill()  # what is left of its group, while its id cannot be given to another process
        code = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
        _answer(running.connection, str(code))
        with suppress(KeyError):  # the client has closed it
            self._selector.unregister(running.connection)
        self._selector.unregister(ended)
        del self._of[running.connection]
        running.connection.close()
        os.close(ended)

    def _kill_all(self) -> None:
        for running in self._running.values():
            running.kill()
            os.waitpid(running.pid, 0)

    def _forget(self) -> None:
        """Close the server's files, in a forked process."""
        files = [key.fileobj for key in self._selector.get_map().values()]
        self._selector.close()
        for file in files:
            if isinstance(file, socket.socket):
                file.close()
            elif isinstance(file, int) and file != 0:
                os.close(file)


def _answer(connection: socket.socket, words: str) -> None:
    """Tell a client; that it is gone is seen when its connection is read."""
    with suppress(OSError):
        connection.send(words.encode())


def _become(program: Program, output: int, server: int) -> None:
    """Take on what a program that is started by itself would get from its parent."""
    die_with_parent()
    if os.getppid() != server:  # it has died already
        os.kill(os.getpid(), signal.SIGKILL)
    if program.leads_session:
        os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(program.environ)
    os.chdir(program.folder)
    with suppress(OSError):
        Path("/proc/self/comm").write_text(program.name[:15], encoding="utf-8")
