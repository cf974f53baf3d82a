"""Pictures from noise: flow matching, by one network, or by experts that were trained apart and a router.

An extra: `pip install 'shoal[digits]'`. Nothing below imports it; a process loads it with the first run about pictures
(extension.py), or with the first folder of such experts that it serves. See docs/diffusion.md.

flow       what a network is to tell, and how noise is carried to pictures
network    the two networks, and the kind of models that they are
pictures   what is learned from, and the rows of a step
extension  these for whoever trains; worker: the process that does
mixture    experts as one velocity, by a router
gallery    a folder of experts as something to serve
painter    whose pictures are painted next, many in a call
requests   OpenAI's body about pictures
server     /v1/images/generations, and pictures as a file
"""
