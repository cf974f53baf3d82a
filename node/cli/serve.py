"""Commands that ask a trained model: on the terminal, and for others over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.node.serve.served import Choices, Served

Source = Annotated[
    Path,
    typer.Argument(metavar="SOURCE", help="Folder of a checkpoint, of experts, or of a model that transformers opens."),
]
Mix = Annotated[
    str,
    typer.Option(
        envvar="SHOAL_SERVE_MIX",
        metavar="full|top-K|average|pcb",
        help="Of experts: ask all, or the K best; or merge them. Without it, all.",
    ),
]
Prior = Annotated[
    str,
    typer.Option(
        envvar="SHOAL_SERVE_PRIOR",
        metavar="FILE",
        help="A text by which experts are believed beforehand; never one that they are then measured by.",
    ),
]
Base = Annotated[
    str,
    typer.Option(
        envvar="SHOAL_SERVE_BASE",
        metavar="FILE|SEED",
        help="For --mix pcb: what the experts have begun with.",
    ),
]
Device = Annotated[str, typer.Option(envvar="SHOAL_SERVE_DEVICE", help="To compute on: auto, cpu, mps, cuda, cuda:1.")]
Threads = Annotated[
    int,
    typer.Option(envvar="SHOAL_SERVE_THREADS", min=0, max=1024, help="Of the CPU; 0: one, or half the cores of many."),
]
TokenizerFile = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        envvar="SHOAL_SERVE_TOKENIZER",
        metavar="FILE|bytes",
        help="A tokenizer.json, where the source has none.",
    ),
]


def generate(
    source: Source,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to go on from; - reads it from stdin.")],
    max_tokens: Annotated[
        int | None, typer.Option(envvar="SHOAL_GENERATE_MAX_TOKENS", min=1, help="Without it, as many as fit.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(envvar="SHOAL_GENERATE_TEMPERATURE", min=0.0, max=2.0, help="0: the most probable.")
    ] = 0.8,
    top_p: Annotated[
        float, typer.Option(envvar="SHOAL_GENERATE_TOP_P", min=0.0, max=1.0, help="Share of the nucleus.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(envvar="SHOAL_GENERATE_SEED", min=0, help="The same, the same text.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(envvar="SHOAL_GENERATE_STOP", help="A string that ends it; may be repeated.")
    ] = None,
    device: Device = "auto",
    threads: Threads = 0,
    tokenizer: TokenizerFile = "",
    mix: Mix = "",
    prior: Prior = "",
    base: Base = "",
) -> None:
    """Write text with a trained model."""
    import sys

    from shoal.node.serve.sampling import Sampling
    from shoal.node.serve.served import Choices
    from shoal.node.serve.writing import write

    served = _open(source, Choices(device, 1, tokenizer, threads, mix, prior, base))
    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = Sampling(temperature, top_p, seed)
    for part in write(served, text, most=max_tokens, sampling=sampling, stops=tuple(stop or ())):
        print(part, end="", flush=True)
    print()


def serve(
    source: Source,
    host: Annotated[
        str, typer.Option(envvar="SHOAL_SERVE_HOST", help="To listen on; 0.0.0.0 lets others in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="SHOAL_SERVE_PORT", min=0, max=65535, help="0: any free one.")] = 8080,
    api_key: Annotated[
        str, typer.Option(envvar="SHOAL_SERVE_API_KEY", help="That clients must show as a bearer token.")
    ] = "",
    slots: Annotated[
        int, typer.Option(envvar="SHOAL_SERVE_SLOTS", min=1, max=4096, help="Texts that are written at once.")
    ] = 32,
    waiting: Annotated[
        int, typer.Option(envvar="SHOAL_SERVE_WAITING", min=1, help="Texts that may wait for a slot.")
    ] = 128,
    name: Annotated[
        str, typer.Option(envvar="SHOAL_SERVE_NAME", help="Of the model in the API; without it, the source's.")
    ] = "",
    device: Device = "auto",
    threads: Threads = 0,
    tokenizer: TokenizerFile = "",
    mix: Mix = "",
    prior: Prior = "",
    base: Base = "",
) -> None:
    """Serve a trained model by OpenAI's HTTP API, until Ctrl-C."""
    import asyncio
    from dataclasses import replace

    from shoal.node.serve.app import Listening
    from shoal.node.serve.app import serve as serve_until_told
    from shoal.node.serve.served import Choices

    served = _open(source, Choices(device, slots, tokenizer, threads, mix, prior, base))
    if name:
        served = replace(served, name=name)
    asyncio.run(serve_until_told(served, Listening(host, port, api_key, waiting)))


def _open(source: Path, choices: Choices) -> Served:
    from shoal.node.options import check_device
    from shoal.node.serve.source import open_source

    check_device(choices.device)
    return open_source(source, choices)
