"""Every type of causal language model that transformers has, through its whole life here, as a table.

    python benchmarks/models.py [TYPE ...] [--json]

Each type's default config is made small by one rule (kit/toys.py). Then a run of it is founded, trained by two members
for two rounds, and exported; the export is compared with what `save_pretrained` writes of the same weights, opened by
`AutoModelForCausalLM`, and served. All in one process, without daemons (kit/model_trial.py).

    works      all of that
    refused    before it is founded, because transformers' own model looks at later tokens, or it cannot open again
               what it saves: the step, and the line of its code
    not tried  the rule's config is none that transformers builds a model of and trains: the line of its code
    fails      anything else; exit 1

Three minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from dataclasses import asdict

import torch
from kit.model_trial import FAILS, Verdict, attempt

from shoal.node.base import extra


def main() -> int:
    """Try each type in turn; 0 if none fails."""
    options = _parse()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # how models are served is not asked here
    tried = []
    for model_type in options.types or all_types():
        tried.append(attempt(model_type))
        print(json.dumps(asdict(tried[-1])) if options.json else row(tried[-1]), flush=True)
    counts = Counter(verdict.what for verdict in tried)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())), file=sys.stderr)
    return 1 if counts[FAILS] else 0


def all_types() -> list[str]:
    """Those of transformers, in its order."""
    return list(extra.transformers().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def row(verdict: Verdict) -> str:
    """A line of the table."""
    cells = (verdict.type, verdict.what, verdict.where, verdict.reason, f"`{verdict.line}`" if verdict.line else "")
    return "| " + " | ".join(each.replace("|", "/") for each in cells) + " |"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="only these")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each type")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
