"""Checkpoints: a committed round on disk, with all that this peer needs to go on from it.

    runs/<run id>/checkpoints/round-00000012/
        model.safetensors    the committed parameters, under their Hugging Face names
        outer.safetensors    the outer optimizer's momentum; other agreed vectors have files of their names
        inner.safetensors    this peer's own AdamW moments, where it trains
        private.safetensors  what its method keeps beside them, if anything
        checkpoint.json      what they are, their hashes, and where the peer stood

A checkpoint is written under another name, forced to disk and renamed, so there is a whole one or none (`write`).
`about` is the JSON, `scan` finds checkpoints and looks without reading them through, `read` loads and verifies every
byte, `keep` is when a daemon writes them and which it keeps, `lineage` what a run that goes on from one is, and
`export` makes a folder for other programs.
"""
