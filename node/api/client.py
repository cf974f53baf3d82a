"""The client of a node's admin API. It uses the standard library only, because read commands must start fast.

Its methods are the operations of node/api/operations.py. Errors keep their meaning across HTTP (node/api/errors.py).
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar, cast, get_origin

from shoal.node.api.errors import error_blaming
from shoal.node.api.liveness import WatchedSocket, shows_life
from shoal.node.api.operations import JOINING, QUICK, Operation, Operations
from shoal.node.base.home import DaemonInfo, Home
from shoal.node.base.process_identity import ProcessIdentity, network_namespace
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.net.system.version import shoal_version

MAX_ANSWER = 64 << 20  # bytes
BUSY_FOR = 30.0  # seconds for which a node that has shown life may be silent: it may be loading torch
STATES = {  # of the main thread, which runs the event loop: what that means, and what to do about it
    "T": "its process is stopped, as by Ctrl-Z; `kill -CONT {pid}` lets it go on",
    "t": "a debugger holds its process",
    "D": "it waits for a disk or another device; the system's log may say which",
    "R": "it is busy, and may answer again in a moment",
}

A = TypeVar("A")


class NoDaemon(LocalError):
    """No node runs in the home, or it is not ready."""

    code = "no-node"


class NotAnswering(TransportError):
    """The node's process is there and shows no life: it was stopped, or it hangs. What was asked may still be done."""

    code = "not-answering"


class VersionMismatch(LocalError):
    """The node and this client are of different versions."""

    code = "other-version"


class Client(Operations):
    """Calls the node that runs in `home`; each operation of the API is a method.

    `silence` is for how many seconds the node may show no life, before a long answer or instead of one from memory.
    No answer is waited for longer than `most` seconds. NoDaemon if no node runs; LocalError if its API cannot be
    reached from here.
    """

    def __init__(self, home: Home, silence: float = QUICK, most: float = JOINING) -> None:
        info = home.read_daemon()
        if info is None:
            raise NoDaemon(_why_absent(home))
        _check_loopback(home, info)
        self.pid = info.pid
        self._home, self._info = home, info
        self._silence, self._most = silence, most
        self._host = _reachable(info.admin_host)
        self.port = info.admin_port

    @property
    def url(self) -> str:
        """The URL of the API."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/"

    def page(self, with_login: bool) -> str:
        """The URL of the page; `with_login`: a link that logs a browser in, once and within some minutes."""
        return f"{self.url}#login={self.login_code()['code']}" if with_login else self.url

    def call(self, operation: Operation[Any, A], request: Any) -> A:
        """The node's answer. Raises the error that the node reports, NotAnswering if it shows no life, TransportError
        if there is no proper answer, and VersionMismatch.
        """
        path, body = path_and_body(operation, request)
        if operation.in_lines:
            return cast(A, self._lines(operation, path, body))
        with self._response(operation, path, body) as response:
            answer = json.loads(response.read(MAX_ANSWER))
        self._check(operation, path, response, answer)
        if not isinstance(answer, list if get_origin(operation.answer) is list else dict):
            raise TransportError(f"the node gave an answer of the wrong shape to {path}")
        return cast(A, answer)

    def _lines(self, operation: Operation[Any, Any], path: str, body: str | None) -> Iterator[Any]:
        """The objects of an answer that comes as JSON lines."""
        with self._response(operation, path, body) as response:
            is_error = response.status >= 300
            self._check(operation, path, response, json.loads(response.read(MAX_ANSWER)) if is_error else None)
            while line := response.readline(MAX_ANSWER):
                yield json.loads(line)

    def _check(
        self, operation: Operation[Any, Any], path: str, response: http.client.HTTPResponse, answer: Any
    ) -> None:
        """Raise the error that a response stands for, if it is one, or VersionMismatch."""
        version = response.getheader("Shoal-Version")
        if version != shoal_version() and not operation.any_version:
            raise VersionMismatch(
                f"the node runs Shoal {version or 'unknown'} and this command is {shoal_version()}: "
                "restart the node with `shoal node stop` and `shoal node start`"
            )
        if response.status >= 300:
            told = answer if isinstance(answer, dict) else {}
            words = told.get("error") or f"the node answered {response.status} to {operation.method} {path}"
            raise error_blaming(str(words), told.get("blame"), told.get("code"))

    @contextmanager
    def _response(
        self, operation: Operation[Any, Any], path: str, body: str | None
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self._home.token()}", "Content-Type": "application/json"}
        is_long, patience = operation.patience > QUICK, min(operation.patience, self._most)
        if is_long:
            self._check_alive(self._silence)
        connection = http.client.HTTPConnection(self._host, self.port, timeout=min(self._silence, patience))
        try:
            connection.connect()
            if is_long:
                check = partial(self._check_alive, BUSY_FOR)
                connection.sock = WatchedSocket(connection.sock, patience, check)
            connection.request(operation.method, path, body, headers)
            yield connection.getresponse()
        except TimeoutError as error:
            if is_long:
                raise TransportError(
                    f"the node (pid {self.pid}) gave no answer in {patience:.0f} s", code="node-slow"
                ) from error
            raise self._not_answering(self._silence) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise TransportError(f"the node's API at {self.url} does not answer properly: {reason}") from error
        finally:
            connection.close()

    def _check_alive(self, within: float) -> None:
        """NotAnswering if the node shows no life within so many seconds."""
        if not shows_life(self._host, self.port, within):
            raise self._not_answering(within)

    def _not_answering(self, seconds: float) -> NotAnswering:
        process, last = self._home.daemon_process(), _last_log_line(self._home) if self._info.logs_here else ""
        is_here = process is not None and process.is_here()
        end = f"`shoal node stop --force`, or else `kill -9 {self.pid}`, ends it" if is_here else "end it where it runs"
        return NotAnswering(
            f"the node (pid {self.pid}) does not answer: it has shown no life for {seconds:.0f} s{last}"
            f"{_state(process)}. `shoal bugreport` collects what its developers need in order to find out why; {end}"
        )


def _last_log_line(home: Home) -> str:
    """When the node has logged its last line, as a part of a sentence; empty if that is unknown."""
    try:
        at = time.gmtime(home.daemon_log.stat().st_mtime)
    except OSError:
        return ""
    return time.strftime(", and has logged nothing since %Y-%m-%d %H:%M:%S UTC", at)


def _state(process: ProcessIdentity | None) -> str:
    """What the state of the node's process means, as a part of a sentence; empty if it means nothing."""
    words = STATES.get(process.state(), "") if process is not None else ""
    return f"; {words.format(pid=process.pid)}" if process is not None and words else ""


def _why_absent(home: Home) -> str:
    process = home.daemon_process()
    if process is None:
        return f"no node runs in {home.root}: start one with `shoal node start`"
    told = f"the node in {home.root} (pid {process.pid}) is starting or ending"
    return f"{told}{_state(process)}: try again, or see {home.daemon_log}"


def _check_loopback(home: Home, info: DaemonInfo) -> None:
    """LocalError if the node listens on another loopback than ours: there another program would get the token."""
    elsewhere = "" not in (info.network, network_namespace()) and info.network != network_namespace()
    if elsewhere and _is_loopback(_reachable(info.admin_host)):
        raise LocalError(
            f"the node in {home.root} (pid {info.pid} where it runs) listens on the loopback of another container "
            "or machine: ask it there, or start it with --admin-host and an address that is reached from here",
            code="node-elsewhere",
        )


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reachable(host: str) -> str:
    """The host to call: the loopback, if the daemon listens on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def path_and_body(operation: Operation[Any, Any], request: Any) -> tuple[str, str | None]:
    """(path with query, JSON body or None) of a request."""
    from urllib.parse import quote, urlencode

    given = {field.name: getattr(request, field.name) for field in fields(request)}
    named = {name: given.pop(name) for name in list(given) if f"{{{name}}}" in operation.path}
    path = operation.path.format(**{name: quote(str(value), safe="") for name, value in named.items()})
    if operation.method == "POST":
        return path, json.dumps(given)
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return (f"{path}?{query}" if query else path), None
