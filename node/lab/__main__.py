"""`python -m shoal.node.lab`: train by a method with virtual workers, and report the results.

Exit codes are those of `exits`: 2 for a wrong command line, 1 where the training failed, as when it diverged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.node.base.exits import Exit
from shoal.node.lab.registry import METHODS, WrongSetting, parse
from shoal.node.lab.study import Experiment, Result, prepare, run
from shoal.node.manifest.manifest import Manifest, ModelSpec, load_manifest
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.data.corpus import stdlib_corpus
from shoal.protocol.base.errors import LocalError

SMALL = Manifest(
    name="lab",
    model=ModelSpec(dim=64, layers=2, heads=4, kv_heads=2, hidden=192, context=64),
    method=MethodSpec(batch=8),
)
LAST = 20  # steps whose mean is the training loss at the end
REPORTS = 10  # lines of progress


def main(arguments: Sequence[str] | None = None) -> Exit:
    """Run the command line; SystemExit with code 2 if it is wrong."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    try:
        parse(options.method, options.settings)  # before anything takes time
        manifest = _manifest(options)
        corpus = stdlib_corpus()
        study, workers = prepare(_experiment(options), manifest, corpus.train)
    except (LocalError, WrongSetting) as error:
        parser.error(str(error))

    def tell(step: int, loss: float) -> None:
        if step % max(1, options.steps // REPORTS) == 0:
            print(f"step {step} of {options.steps}: training loss {loss:.4f}", file=sys.stderr, flush=True)

    try:
        report = None if options.json else tell
        result = run(study, workers, corpus, options.steps, options.validation, report, options.every)
    except LocalError as error:
        print(f"the training failed: {error}", file=sys.stderr)
        return Exit.FAILED
    print(json.dumps(_table(options, result)) if options.json else _lines(options, result))
    return Exit.OK


def _experiment(options: argparse.Namespace) -> Experiment:
    return Experiment(
        options.method,
        tuple(options.settings),
        options.workers,
        options.lanes,
        options.steps,
        options.warm,
        options.lose,
    )


def _manifest(options: argparse.Namespace) -> Manifest:
    manifest = SMALL if options.manifest is None else load_manifest(options.manifest)
    if manifest.data.name != "stdlib":
        raise LocalError(
            f"the laboratory trains on stdlib only, and the manifest's data are {manifest.data.name}",
            code="manifest-wrong",
        )
    method = manifest.method
    if method.optimizer != "adamw":
        raise LocalError(
            f"the laboratory's workers train with AdamW only, and the manifest's with {method.optimizer}",
            code="manifest-wrong",
        )
    if options.inner_steps is not None:
        method = method.model_copy(update={"inner_steps": options.inner_steps})
    seed = manifest.seed if options.seed is None else options.seed
    return manifest.model_copy(update={"method": method, "seed": seed})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shoal.node.lab", description="Train with virtual workers.")
    parser.add_argument("--method", required=True, help=", ".join(METHODS))
    parser.add_argument("--workers", type=_positive, default=8)
    parser.add_argument("--steps", type=_positive, default=400, help="inner steps of each worker")
    parser.add_argument("--inner-steps", type=_positive, help="from one exchange to the next; default: the manifest's")
    parser.add_argument("--seed", type=_seed, help="default: the manifest's")
    parser.add_argument("--manifest", type=Path, help="model and inner training; default: a small model")
    parser.add_argument("--warm", type=_steps, default=0, help="first steps that are made together, as by ddp")
    parser.add_argument("--lanes", type=_positive, default=1, help="batches that each worker takes together as one")
    parser.add_argument("--lose", type=_share, default=0.0, help="the probability that an exchange fails")
    parser.add_argument("--validation", type=_text, default=64 << 10, help="bytes of held-out text, from its beginning")
    parser.add_argument("--every", type=_positive, help="steps from one look at the averaged model to the next")
    parser.add_argument("--json", action="store_true", help="the result as one line of JSON")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of the method")
    return parser


def _number(text: str, least: int, most: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from {least} to {most}")
    return number


def _positive(text: str) -> int:
    return _number(text, 1, 100_000)


def _steps(text: str) -> int:
    return _number(text, 0, 100_000)


def _seed(text: str) -> int:
    return _number(text, 0, 2**63 - 1)


def _text(text: str) -> int:
    return _number(text, 2, 2**40)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 to 1")
    return share


def _lines(options: argparse.Namespace, result: Result) -> str:
    last, traffic = result.curve[-LAST:], result.traffic
    return "\n".join(
        (
            f"{options.method}: {options.workers} workers, {options.steps} steps, {result.parameters} parameters",
            f"training loss     {result.curve[0]:.4f} at first, {sum(last) / len(last):.4f} over the last {len(last)}",
            f"validation loss   {result.merged:.4f} of the averaged model",
            f"                  {result.mean:.4f} of a replica on average, {result.spread:.4f} between best and worst",
            f"bytes sent        {traffic.sent:.1f} per parameter and worker; as many received",
            f"                  contributions are {traffic.contributed:.1f}, answers {traffic.answered:.1f}, the "
            f"greatest exchange {result.greatest:.2f}",
            f"exchanges         {result.answers} answered, {result.missed} not, counted by workers",
        )
    )


def _table(options: argparse.Namespace, result: Result) -> dict[str, Any]:
    return {
        "method": options.method,
        "settings": {key: _finite(value) for key, value in parse(options.method, options.settings).items()},
        "workers": options.workers,
        "steps": options.steps,
        "parameters": result.parameters,
        "training_loss": [_finite(each) for each in result.curve],
        "validation_loss": _finite(result.merged),
        "replica_losses": [_finite(each) for each in result.replicas],
        "validation_curve": [(step, _finite(loss)) for step, loss in result.validation],
        "bytes_sent_per_parameter": result.traffic.sent,
        "bytes_contributed_per_parameter": result.traffic.contributed,
        "bytes_answered_per_parameter": result.traffic.answered,
        "greatest_exchange_per_parameter": result.greatest,
        "answered": result.answers,
        "missed": result.missed,
    }


def _finite(value: Any) -> Any:
    """None in place of NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
