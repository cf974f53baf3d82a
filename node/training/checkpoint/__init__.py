"""Checkpoints: the state after a round on disk, with all that this peer needs to continue from it.

    runs/<run id>/checkpoints/round-00000012/
        model.safetensors    the committed parameters, under their Hugging Face names
        outer.safetensors    the outer optimizer's momentum; other agreed vectors have files of their names
        inner.safetensors    this peer's own AdamW moments, if it trains
        private.safetensors  the private vectors that its method keeps, if there are any
        checkpoint.json      a description: run, round, members, and the hashes of the files

A checkpoint is written under another name, forced to disk and renamed, so it is complete or does not exist.

about       checkpoint.json
scan        finds checkpoints, without reading all of their bytes
read        loads them, and verifies every byte
write, keep writes them; when a daemon does that, and which ones it keeps
lineage     the manifest of a run that continues from a checkpoint
export      makes a folder for other programs; tokenizer: with the run's tokenizer
"""
