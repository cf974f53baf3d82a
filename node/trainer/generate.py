"""Text from a model: bytes drawn one after the other, at a temperature, reproducibly for a seed.

There is no cache of keys and values: the whole context is computed again for each byte. That is simple, and slow for
long texts; a few hundred bytes cost less than the validation that comes before them.
"""

from __future__ import annotations

import torch

from shoal.node.models.kind import TrainedModel

END_OF_TEXT = 0  # as in the corpus: before the first byte of a text, and after its last
BYTES = 256


def generate(
    model: TrainedModel, prompt: bytes, count: int, *, context: int, temperature: float = 0.8, seed: int = 0
) -> bytes:
    """Up to `count` bytes after `prompt`, which must not be empty; fewer where the model ends its text."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    text = list(prompt)
    model.eval()
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([text[-context:]], device=device))[0, -1, :BYTES]  # (V)
            shares = torch.softmax(logits.float().cpu() / temperature, dim=-1)
            drawn = int(torch.multinomial(shares, 1, generator=generator))
            if drawn == END_OF_TEXT:
                break
            text.append(drawn)
    return bytes(text[len(prompt) :])
