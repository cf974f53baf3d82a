"""`shoal up`: a whole swarm on this machine, from nothing to a verdict. One such swarm, start to end, is a *play*.

It is an ordinary client: it starts daemons, talks to their HTTP APIs and reads what they write. In the order of
what happens: plan, stage (peers, swarm), jobs, measuring, verdict; orchestrate calls them.
"""
