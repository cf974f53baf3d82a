"""Port mappings on a home router, so that others can dial us: which router there is, and what is said to it.

router    what any router is asked (Gateway), which one is ours (HomeNetwork), which ports it should forward
natpmp    a router that speaks NAT-PMP
upnp      a router that speaks UPnP
upkeep    what to do next: find a router, look at it, map a port, renew; pure
judging   whether the router's outside address is one of the internet; pure

A device on the local network may send anything. So sizes, counts and times are bounded, and nothing that a device says
makes us contact another host than itself. peers/port_mapping.py drives all of it.
"""
