"""Port mappings on a home router, so that others can dial us: the router is found and asked.

router      what every router can be asked (Gateway), the network that we are in (HomeNetwork), the ports to forward
natpmp      a router that speaks NAT-PMP
upnp        a router that speaks UPnP
upkeep      what to do next: find a router, look at it, map a port, renew; pure
double_nat  whether there is another NAT between the router and the internet; pure

A device on the local network may send anything. So sizes, counts and times are bounded, and nothing that a device says
makes us contact another host than itself. peers/port_mapping.py drives all of it.
"""
