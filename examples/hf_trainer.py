"""A language model of Hugging Face's transformers in their own Trainer, trained by everybody who has the run's link.

    python examples/hf_trainer.py TEXT...                   creates a run about your text files, and prints its link
    python examples/hf_trainer.py TEXT... --link LINK       joins it with your own text

It needs Shoal's extra `hf` (docs/getting-started.md). Nothing is downloaded: the model is tiny and made here, and
tokens are bytes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from shoal.node import create, join
from shoal.node.client.script.hf import ShoalCallback

parser = argparse.ArgumentParser(description="Train a small language model, together.")
parser.add_argument("text", nargs="+", type=Path, help="files to learn from")
parser.add_argument("--link", help="of a run to join; without it, a new one is founded")
parser.add_argument("--rounds", type=int, default=20, help="of a new run")
parser.add_argument("--save", help="a folder for the model at the end")
arguments = parser.parse_args()

CONTEXT = 64
text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in arguments.text)), dtype=torch.uint8).long()
samples = [{"input_ids": piece, "labels": piece} for piece in text.split(CONTEXT) if len(piece) == CONTEXT]

config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=True,
)
model = LlamaForCausalLM(config)
method, rounds = {"inner_steps": 10, "batch": 8}, {"last": arguments.rounds, "pace": "steps"}
run = join(arguments.link) if arguments.link else create("words", method=method, rounds=rounds)


class Callback(ShoalCallback):
    """It says by which link others join, once there is one."""

    def on_train_begin(self, args, state, control, **given):  # type: ignore[no-untyped-def]
        super().on_train_begin(args, state, control, **given)
        print(f"others join with --link {run.link}", flush=True)


with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        max_steps=100_000,  # the run ends before
        learning_rate=2e-3,
        warmup_steps=20,
        lr_scheduler_type="constant_with_warmup",
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    Trainer(model=model, args=settings, train_dataset=samples, callbacks=[Callback(run)]).train()
if arguments.save:
    model.save_pretrained(arguments.save)
