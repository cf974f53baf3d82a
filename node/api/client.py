"""The client of a node's admin API. It uses the standard library only, because read commands must start fast.

Its methods are the operations of node/api/operations.py. Errors keep their meaning across HTTP (node/api/errors.py).
"""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar, cast, get_origin

from shoal.node.api.errors import error_blaming
from shoal.node.api.operations import Operation, Operations
from shoal.node.base.home import DaemonInfo, Home
from shoal.node.base.process_identity import network_namespace
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.net.system.version import shoal_version

MAX_ANSWER = 64 << 20  # bytes

A = TypeVar("A")


class NoDaemon(LocalError):
    """No node runs in the home, or it is not ready."""


class VersionMismatch(LocalError):
    """The node and this client are of different versions."""


class Client(Operations):
    """Calls the node that runs in `home`; each operation of the API is a method.

    NoDaemon if none runs; LocalError if its API cannot be reached from here.
    """

    def __init__(self, home: Home, patience: float = math.inf) -> None:
        """`patience`: seconds to wait for an answer at most, if that is less than the operation's own."""
        info = home.read_daemon()
        if info is None:
            raise NoDaemon(_why_absent(home))
        _check_loopback(home, info)
        self.pid = info.pid
        self._home, self._patience = home, patience
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
        """The node's answer. Raises the error that the node reports, TransportError if there is no proper answer, and
        VersionMismatch.
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
            raise error_blaming(str(words), told.get("blame"))

    @contextmanager
    def _response(
        self, operation: Operation[Any, Any], path: str, body: str | None
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self._home.token()}", "Content-Type": "application/json"}
        patience = min(operation.patience, self._patience)
        connection = http.client.HTTPConnection(self._host, self.port, timeout=patience)
        try:
            connection.request(operation.method, path, body, headers)
            yield connection.getresponse()
        except TimeoutError as error:
            raise TransportError(f"the node (pid {self.pid}) gave no answer in {patience:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise TransportError(f"the node's API at {self.url} does not answer properly: {reason}") from error
        finally:
            connection.close()


def _why_absent(home: Home) -> str:
    pid = home.daemon_pid()
    if pid is None:
        return f"no node runs in {home.root}: start one with `shoal node start`"
    return f"the node in {home.root} (pid {pid}) is starting or ending: try again, or see {home.daemon_log}"


def _check_loopback(home: Home, info: DaemonInfo) -> None:
    """LocalError if the node listens on another loopback than ours: there another program would get the token."""
    elsewhere = "" not in (info.network, network_namespace()) and info.network != network_namespace()
    if elsewhere and _is_loopback(_reachable(info.admin_host)):
        raise LocalError(
            f"the node in {home.root} (pid {info.pid} where it runs) listens on the loopback of another container "
            "or machine: ask it there, or start it with --admin-host and an address that is reached from here"
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
