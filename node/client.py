"""A caller of a node's admin API, with the standard library only: read commands must start fast.

Failures keep their meaning across HTTP: what was the caller's fault there is a LocalError here.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shoal.node.home import DaemonInfo, Home
from shoal.node.life import network
from shoal.protocol.errors import LocalError, RemoteError, TransportError
from shoal.protocol.version import shoal_version

QUICK = 15.0  # answered from memory
JOINING = 30 * 86_400.0  # it may download the run's data first, however long that takes; Ctrl-C ends the wait
PATIENT = 600.0  # the node has to ask peers, or to write a large file
MAX_ANSWER = 64 << 20

Answer = dict[str, Any]


class NoDaemon(LocalError):
    """Nobody is there to ask."""


class VersionMismatch(LocalError):
    """The node and this command are of different versions."""


class Client:
    """Calls the node that runs in `home`."""

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
        return f"{self.url}#login={self._post('/v1/login/code', {})['code']}" if with_login else self.url

    def status(self) -> Answer:
        """See NodeService.status; so for the others."""
        return self._get_object("/v1/status")

    def peers(self) -> list[Answer]:
        return self._get_list("/v1/peers")

    def netcheck(self) -> Answer:
        return self._get_object("/v1/netcheck")

    def examine(self, peer: str) -> Iterator[Answer]:
        """What is found out, as it is."""
        return self._lines("/v1/doctor", {"peer": peer})

    def runs(self) -> list[Answer]:
        return self._get_list("/v1/runs")

    def run_details(self, run: str) -> Answer:
        return self._get_object(f"/v1/runs/{_quote(run)}")

    def rounds(self, run: str, last: int | None = None) -> list[Answer]:
        return self._get_list(f"/v1/runs/{_quote(run)}/rounds{f'?last={last}' if last is not None else ''}")

    def timeline(self, run: str, round: int) -> Answer:
        return self._get_object(f"/v1/runs/{_quote(run)}/rounds/{round}")

    def create_run(self, manifest_toml: str, train: bool, checkpoints: Sequence[str] = ()) -> Answer:
        return self._post("/v1/runs", {"manifest": manifest_toml, "train": train, "checkpoints": list(checkpoints)})

    def run_link(self, run: str) -> Answer:
        return self._get_object(f"/v1/runs/{_quote(run)}/link")

    def preview_run(self, link: str) -> Answer:
        return self._post("/v1/preview", {"link": link})

    def join_run(self, link: str, train: bool, checkpoint: str = "") -> Answer:
        return self._post("/v1/join", {"link": link, "train": train, "checkpoint": checkpoint}, JOINING)

    def public_runs(self) -> list[Answer]:
        return self._get_list("/v1/discover", PATIENT)

    def leave_run(self, run: str) -> Answer:
        return self._post(f"/v1/runs/{_quote(run)}/leave", {})

    def save_state(self, run: str, path: str, own: bool = False) -> Answer:
        return self._post(f"/v1/runs/{_quote(run)}/save", {"path": path, "own": own})

    def experts(self, family: str) -> list[Answer]:
        return self._get_list(f"/v1/experts/{_quote(family)}")

    def expert_sources(self, family: str) -> Answer:
        return self._get_object(f"/v1/experts/{_quote(family)}/sources")

    def fetch_experts(self, family: str, folder: str) -> Answer:
        return self._post(f"/v1/experts/{_quote(family)}/fetch", {"folder": folder}, JOINING)

    def stop(self) -> None:
        """Also works across versions: an upgrade begins with it."""
        self._call("POST", "/v1/stop", {}, QUICK, any_version=True)

    def _get_object(self, path: str) -> Answer:
        answer = self._call("GET", path, None, QUICK)
        return answer if isinstance(answer, dict) else _strange(path)

    def _get_list(self, path: str, patience: float = QUICK) -> list[Answer]:
        answer = self._call("GET", path, None, patience)
        return answer if isinstance(answer, list) else _strange(path)

    def _post(self, path: str, body: Answer, patience: float = PATIENT) -> Answer:
        answer = self._call("POST", path, body, patience)
        return answer if isinstance(answer, dict) else _strange(path)

    def _lines(self, path: str, body: Answer) -> Iterator[Answer]:
        """The objects of an answer that comes line by line."""
        with self._asking("POST", path, body, PATIENT) as response:
            if response.status >= 300:
                self._judge(f"POST {path}", response, json.loads(response.read(MAX_ANSWER)))
            self._judge(f"POST {path}", response, None)
            while line := response.readline(MAX_ANSWER):
                yield json.loads(line)

    def _call(self, method: str, path: str, body: Answer | None, patience: float, any_version: bool = False) -> Any:
        with self._asking(method, path, body, patience) as response:
            answer = json.loads(response.read(MAX_ANSWER))
        self._judge(f"{method} {path}", response, answer, any_version)
        return answer

    def _judge(self, asked: str, response: http.client.HTTPResponse, answer: Any, any_version: bool = False) -> None:
        """What is wrong with an answer, if anything is, as the error that it stands for."""
        version = response.getheader("Shoal-Version")
        if version != shoal_version() and not any_version:
            raise VersionMismatch(
                f"the node runs Shoal {version or 'unknown'} and this command is {shoal_version()}: "
                "restart the node with `shoal node stop` and `shoal node start`"
            )
        if response.status < 300:
            return
        reason = answer.get("error") if isinstance(answer, dict) else None
        message = str(reason or f"the node answered {response.status} to {asked}")
        blame = answer.get("blame") if isinstance(answer, dict) else None
        raise {"peer": RemoteError, "network": TransportError}.get(str(blame), LocalError)(message)

    @contextmanager
    def _asking(
        self, method: str, path: str, body: Answer | None, patience: float
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self._home.token()}", "Content-Type": "application/json"}
        payload = None if body is None else json.dumps(body)
        connection = http.client.HTTPConnection(self._host, self.port, timeout=patience)
        try:
            connection.request(method, path, payload, headers)
            yield connection.getresponse()
        except TimeoutError as error:
            raise TransportError(f"the node (pid {self.pid}) gave no answer in {patience:.0f} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise TransportError(f"the node's API at {self.url} does not answer properly: {reason}") from error
        finally:
            connection.close()


def _why_absent(home: Home) -> str:
    pid = home.holder()
    if pid is None:
        return f"no node runs in {home.root}: start one with `shoal node start`"
    return f"the node in {home.root} (pid {pid}) is starting or ending: try again, or see {home.daemon_log}"


def _check_that_it_is_near(home: Home, info: DaemonInfo) -> None:
    """LocalError if its port, on our loopback, would be somebody else's, who must not be shown the token."""
    elsewhere = "" not in (info.network, network()) and info.network != network()
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


def _quote(run: str) -> str:
    from urllib.parse import quote

    return quote(run, safe="")


def _strange(path: str) -> Any:
    raise TransportError(f"the node gave an answer of the wrong shape to {path}")
