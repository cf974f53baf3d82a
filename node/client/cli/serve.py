"""Commands that use a trained model: `generate` on the terminal, `serve` over HTTP. Experts on pictures paint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.node.client.cli.completion import complete_run
from shoal.node.client.cli.flags import refuse
from shoal.node.client.waiting import Waiting

if TYPE_CHECKING:
    from shoal.node.diffusion.picture_source import PictureSource
    from shoal.node.inference.served import Served, ServeOptions

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Folder of a checkpoint, or of several of one run (the newest counts), of experts, or of a model that "
        "transformers opens; or a run, or a family of experts, that the node is in, by its name or id.",
        autocompletion=complete_run,
    ),
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
Prefer = Annotated[
    str,
    typer.Option(
        envvar="SHOAL_SERVE_PREFER",
        metavar="here|peers",
        help="Of a family's experts whose files are here: open them, or ask peers for all that any answers for.",
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        envvar="SHOAL_SERVE_PATIENCE", min=0.1, max=600.0, help="Seconds that a peer's expert may take for an answer."
    ),
]
Device = Annotated[str, typer.Option(envvar="SHOAL_SERVE_DEVICE", help="To compute on: auto, cpu, mps, cuda, cuda:1.")]
Threads = Annotated[
    int,
    typer.Option(envvar="SHOAL_SERVE_THREADS", min=0, max=1024, help="Of the CPU; 0: one, or half the cores of many."),
]
OF_TEXT = ("max_tokens", "temperature", "top_p", "stop", "slots")  # parameters that pictures do not have
OF_PICTURES = ("count", "out")  # parameters that text does not have
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
    context: typer.Context,
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
    prefer: Prefer = "here",
    patience: Patience = 10.0,
    out: Annotated[
        str, typer.Option(envvar="SHOAL_GENERATE_OUT", metavar="FILE", help="Of experts on pictures: a PNG to write.")
    ] = "",
    count: Annotated[
        int, typer.Option(envvar="SHOAL_GENERATE_COUNT", min=1, max=400, help="Of experts on pictures: how many.")
    ] = 16,
) -> None:
    """Write text with a trained model; or paint, with experts on pictures."""
    import sys

    from shoal.node.inference.served import ServeOptions

    choices = ServeOptions(device, 1, tokenizer, threads, mix, prior, base, prefer, patience)
    is_of_pictures = _is_of_pictures(source, context)
    text = sys.stdin.read() if prompt == "-" else prompt
    if is_of_pictures:
        _paint(source, text, choices, count, seed, out)
        return
    served = _open(source, choices)
    from shoal.node.inference.engine.batch import write  # brings torch, which is there by now
    from shoal.node.inference.engine.sequence import Sampling

    sampling = Sampling(temperature, top_p, seed)
    for part in write(served, text, max_tokens=max_tokens, sampling=sampling, stops=tuple(stop or ())):
        print(part, end="", flush=True)
    print()


def serve(
    context: typer.Context,
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
        int, typer.Option(envvar="SHOAL_SERVE_WAITING", min=1, help="Texts that may wait for a slot, or pictures.")
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
    prefer: Prefer = "here",
    patience: Patience = 10.0,
) -> None:
    """Serve a trained model by OpenAI's HTTP API, until Ctrl-C."""
    import asyncio
    from dataclasses import replace

    from shoal.node.inference.http.server import ListenOptions
    from shoal.node.inference.http.server import serve as serve_until_told
    from shoal.node.inference.served import ServeOptions

    choices, where = (
        ServeOptions(device, slots, tokenizer, threads, mix, prior, base, prefer, patience),
        ListenOptions(host, port, api_key, waiting),
    )
    if _is_of_pictures(source, context):
        from shoal.node.diffusion.server import serve as serve_pictures

        asyncio.run(serve_pictures(_gallery(source, choices, name), where))
        return
    served = _open(source, choices)
    if name:
        served = replace(served, name=name)
    asyncio.run(serve_until_told(served, where))


def _is_of_pictures(source: str, context: typer.Context) -> bool:
    """Whether the source's experts paint; UsageError if a parameter was set that has no meaning for it."""
    from pathlib import Path

    from shoal.node.inference.ensemble.table import is_of_pictures

    if is_of_pictures(Path(source)):
        refuse(context, OF_TEXT, f"is for text, and not for the folder {source}, whose experts paint")
        return True
    refuse(context, OF_PICTURES, f"is for experts on pictures, and {source} is no folder of such")
    return False


def _gallery(source: str, choices: ServeOptions, name: str = "") -> PictureSource:
    from pathlib import Path

    from shoal.node.base.options import check_device

    check_device(choices.device)
    with Waiting("loading the experts"):
        from shoal.node.diffusion.picture_source import PictureSource  # brings torch

        return PictureSource(Path(source), choices, name)


def _paint(source: str, prompt: str, choices: ServeOptions, count: int, seed: int, out: str) -> None:
    from pathlib import Path

    from shoal.node.diffusion.server import write
    from shoal.protocol.base.errors import LocalError

    if not out:
        raise LocalError(
            f"{source} has experts on pictures: name the file to paint, as in --out picture.png", code="bad-flags"
        )
    write(_gallery(source, choices), prompt, count, seed, Path(out))
    print(f"wrote {out}")


def _open(source: str, choices: ServeOptions) -> Served:
    from shoal.node.base.options import check_device

    check_device(choices.device)
    with Waiting("loading the model"):
        from shoal.node.inference.source import open_source  # brings torch

        return open_source(source, choices)
