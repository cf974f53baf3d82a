"""Flow matching: generates pictures from noise, by one network, or by experts that were trained apart and a router.

It needs the extra `digits`. No lower layer imports it; a process loads it with its first run about pictures
(extension.py), or when it serves a folder of such experts. See docs/diffusion.md.

flow            the training target, and the sampler
network         the two networks, and their kind of model
pictures        the data, and the batches of a training step
extension       the package as an extension of training; worker: the process that trains
mixture         experts as one velocity, by a router
picture_source  a folder of experts that can be served
engine          batches the requests of many clients
requests        OpenAI's request for pictures
server          /v1/images/generations, and pictures as a file
"""
