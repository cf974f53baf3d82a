"""A caller of a node's admin API, with the standard library only: read commands must start fast.

What it can call is the table of node/api/operations.py. Failures keep their meaning across HTTP (node/api/errors.py).
"""

from __future__ import annotations

import http.client
import json
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

MAX_ANSWER = 64 << 20

A = TypeVar("A")


class NoDaemon(LocalError):
    """Nobody is there to ask."""


class VersionMismatch(LocalError):
    """The node and this command are of different versions."""


class Client(Operations):
    """Calls the node that runs in `home`; each operation of the API is a method."""

    def __init__(self, home: Home) -> None:
        info = home.read_daemon()
        if info is None:
            raise NoDaemon(_why_absent(home))
        _check_that_it_is_near(home, info)
        self.pid = info.pid
        self._home = home
        self._host = _reachable(info.admin_host)
        self.port = info.admin_port

    @property
    def url(self) -> str:
        """Where the API listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/"

    def page(self, with_login: bool) -> str:
        """Where the page is; `with_login`: a link that logs in once, within some minutes, for a person's terminal."""
        return f"{self.url}#login={self.login_code()['code']}" if with_login else self.url

    def ask(self, operation: Operation[Any, A], request: Any) -> A:
        """The node's answer; an error is the one that the node had, or a TransportError if it gave no proper answer."""
        path, body = path_and_body(operation, request)
        if operation.in_lines:
            return cast(A, self._lines(operation, path, body))
        with self._asking(operation, path, body) as response:
            answer = json.loads(response.read(MAX_ANSWER))
        self._judge(operation, path, response, answer)
        if not isinstance(answer, list if get_origin(operation.answer) is list else dict):
            raise TransportError(f"the node gave an answer of the wrong shape to {path}")
        return cast(A, answer)

    def _lines(self, operation: Operation[Any, Any], path: str, body: str | None) -> Iterator[Any]:
        """The objects of an answer that comes line by line."""
        with self._asking(operation, path, body) as response:
            is_error = response.status >= 300
            self._judge(operation, path, response, json.loads(response.read(MAX_ANSWER)) if is_error else None)
            while line := response.readline(MAX_ANSWER):
                yield json.loads(line)

    def _judge(
        self, operation: Operation[Any, Any], path: str, response: http.client.HTTPResponse, answer: Any
    ) -> None:
        """What is wrong with an answer, if anything is, as the error that it stands for."""
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
    def _asking(
        self, operation: Operation[Any, Any], path: str, body: str | None
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self._home.token()}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(self._host, self.port, timeout=operation.patience)
        try:
            connection.request(operation.method, path, body, headers)
            yield connection.getresponse()
        except TimeoutError as error:
            raise TransportError(f"the node (pid {self.pid}) gave no answer in {operation.patience:.0f} s") from error
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


def _check_that_it_is_near(home: Home, info: DaemonInfo) -> None:
    """LocalError if its port, on our loopback, would be somebody else's, who must not be shown the token."""
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
    """A daemon that listens everywhere is called on the loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def path_and_body(operation: Operation[Any, Any], request: Any) -> tuple[str, str | None]:
    """The path of a request, with its query, and its body."""
    from urllib.parse import quote, urlencode

    given = {field.name: getattr(request, field.name) for field in fields(request)}
    named = {name: given.pop(name) for name in list(given) if f"{{{name}}}" in operation.path}
    path = operation.path.format(**{name: quote(str(value), safe="") for name, value in named.items()})
    if operation.method == "POST":
        return path, json.dumps(given)
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return (f"{path}?{query}" if query else path), None
