"""Claims a pair of TCP ports: the first for libp2p, the second for bulk sockets.

libp2p listens with SO_REUSEPORT, as hole punching dials from the listening port. So two nodes of one user could listen
on the same port, and the kernel would give each some of the other's connections. A pair is therefore claimed by an
exclusive socket on its second port, which listens as long as the node runs.
"""

from __future__ import annotations

import errno
import logging
import socket

from shoal.protocol.base.errors import LocalError

TRIES = 50
BACKLOG = 128
HOPELESS = {  # errors that every other port would give as well
    errno.EADDRNOTAVAIL: "it is not an address of this machine; name one that is",
    socket.EAI_NONAME: "it is not an address of this machine; name one that is",
    errno.EACCES: "only root may listen on such a port; choose one from 1024 on",
    errno.EPERM: "only root may listen on such a port; choose one from 1024 on",
}

log = logging.getLogger(__name__)


def claim_pair(host: str, port: int) -> tuple[int, socket.socket]:
    """(first port, claim): `port` if its pair is free, else the next free one (0: any); LocalError if there is none."""
    for first in range(port, min(port + 2 * TRIES, 65_534), 2) if port else [0] * TRIES:
        pair = _try_pair(host, first)
        if pair is not None:
            if port and pair[0] != port:
                words = "ports %d and %d are in use; listening on %d instead"
                log.warning(words, port, port + 1, pair[0], extra={"code": "ports-in-use"})
            return pair
    raise LocalError(
        f"no free pair of ports on {host} from {port} on: choose another one, or 0 for any", code="port-taken"
    )


def _try_pair(host: str, first: int) -> tuple[int, socket.socket] | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe, claim = socket.socket(family), socket.socket(family)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a dead node may linger
        probe.bind((host, first))
        probe.listen(1)  # until one of them listens, two sockets with SO_REUSEADDR may share a port
        first = probe.getsockname()[1]
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        claim.bind((host, first + 1))
        claim.listen(BACKLOG)
    except OverflowError:
        claim.close()
        return None
    except OSError as error:
        claim.close()
        if error.errno == errno.EADDRINUSE:
            return None
        why = HOPELESS.get(error.errno or 0, error.strerror)
        raise LocalError(f"cannot listen on {host}, port {first}: {why}", code="cannot-listen") from error
    finally:
        probe.close()
    return first, claim


def also_by_ipv6(host: str, port: int) -> list[socket.socket]:
    """A listening IPv6 socket on the same port, if `host` is 0.0.0.0 and this machine has IPv6."""
    if host != "0.0.0.0":
        return []
    second = None
    try:
        second = socket.socket(socket.AF_INET6)
        second.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        second.bind(("::", port))
        second.listen(BACKLOG)
        return [second]
    except OSError:  # no IPv6, or the port is taken: peers come by IPv4, or payloads take streams
        if second is not None:
            second.close()
        return []
