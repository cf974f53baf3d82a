"""One decision of one group: Paxos's messages and votes, leaders and their successors. Pure."""
