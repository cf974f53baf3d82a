"""`shoal netcheck`: what keeps others from us, or us from them, and what to do about it.

facts       what the node has found out, and what it is about to
gathering   the shell that finds it out, when somebody asks
findings    facts -> findings with stable codes, and a verdict; pure
showing     an answer, for people
"""
