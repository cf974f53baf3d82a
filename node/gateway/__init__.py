"""Ports of ours at the outside of a home router, by NAT-PMP or UPnP: who is asked, in which words, and when.

pure     `values` `natpmp` `ssdp` `markup` `igd` (what goes over the wire)  `routes` (which network is ours)
         `upkeep` (what to do next)  `judging` (what the outside address is worth)
shells   `natpmp_gateway` `upnp_gateway` (one router each)  `finding` (which router)

What a device on the local network says is hearsay, and may be anything: sizes, counts and times are bounded, and
nothing that it says makes us speak with another host than itself.
"""
