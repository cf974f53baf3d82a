"""Which router to ask: both protocols are tried side by side, and NAT-PMP is preferred where a router speaks both.

It tells when the router has begun anew, and takes one packet for what takes UPnP four.
"""

from __future__ import annotations

import asyncio

from shoal.node.gateway.natpmp_gateway import NatPmpGateway
from shoal.node.gateway.routes import Home
from shoal.node.gateway.upnp_gateway import find_upnp
from shoal.node.gateway.values import Gateway, GatewayError

LIMIT = 15.0  # seconds for all of it


async def find(home: Home) -> Gateway:
    """The router that leads out of our network; GatewayError, with what each said, if none can be asked."""
    try:
        async with asyncio.timeout(LIMIT):
            return await _find(home)
    except TimeoutError as error:
        raise GatewayError(f"no router has said within {LIMIT:.0f} s what it can do") from error


async def _find(home: Home) -> Gateway:
    searching = asyncio.create_task(find_upnp(home))
    try:
        pmp = NatPmpGateway(home.gateway) if home.gateway is not None else None
        refusal: GatewayError | None = None
        if pmp is not None:
            try:
                if (await pmp.look(())).host:
                    return pmp
            except GatewayError as error:
                refusal, pmp = error, None
        try:
            return await searching
        except GatewayError as error:
            if pmp is not None:
                return pmp  # it has no address outside; that is for its owner to know
            raise GatewayError("; ".join(str(each) for each in (refusal, error) if each is not None)) from error
    finally:
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)  # raises what ends ourselves, and nothing else
