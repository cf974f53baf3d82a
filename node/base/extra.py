"""Optional libraries, imported on first use, with a clear error if one is missing.

The command line, and a daemon that only keeps a run's state, never load them.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from contextlib import suppress
from typing import Any

from shoal.protocol.base.errors import LocalError


def install_command(extra: str) -> str:
    """What to type to add an extra to the Shoal that runs: by this very interpreter, as pipx and uv hide theirs.

    Shoal is there, so pip asks no index for it. Environments that uv makes have no pip.
    """
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install 'shoal[{extra}]'" if _has_pip() else f"uv pip install -p {python} 'shoal[{extra}]'"


def _has_pip() -> bool:
    """Whether pip is installed, found without the import system.

    Asked for pip there, setuptools hands out the standard library's distutils from then on, and torch, which imports
    setuptools in order to compile, fails.
    """
    return any(importlib.metadata.distributions(name="pip"))


INSTALL = install_command("hf")


def transformers() -> Any:
    """Hugging Face's transformers, without telemetry; LocalError if it is not installed."""
    _quiet()
    try:
        import transformers as found
    except ImportError as error:
        raise missing("transformers", "models of kind hf") from error
    logging: Any = found.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return found


def peft() -> Any:
    """Hugging Face's peft; LocalError if it is not installed."""
    transformers()
    try:
        import peft as found
    except ImportError as error:
        raise missing("peft", "LoRA adapters") from error
    return found


def tokenizers() -> Any:
    """Hugging Face's tokenizers; LocalError if it is not installed."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a worker uses only the threads that its owner allows
    try:
        import tokenizers as found
    except ImportError as error:
        raise missing("tokenizers", "tokenizers") from error
    return found


def parquet() -> Any:
    """pyarrow's reader of parquet; LocalError if it is not installed."""
    try:
        import pyarrow.parquet as found
    except ImportError as error:
        raise missing("pyarrow", "parquet files") from error
    return found


def arrow() -> Any:
    """pyarrow, which unpacks zstd; LocalError if it is not installed."""
    try:
        import pyarrow as found
    except ImportError as error:
        raise missing("pyarrow", "files compressed by zstd") from error
    return found


def datasets() -> Any:
    """Hugging Face's datasets; LocalError if it is not installed."""
    _quiet()
    try:
        import datasets as found
    except ImportError as error:
        raise missing("datasets", "streamed datasets") from error
    with suppress(AttributeError):
        found.disable_progress_bars()
    return found


def missing(package: str, what: str) -> LocalError:
    """The error for a missing package."""
    return LocalError(
        f"this machine lacks {package}, which {what} need: install it with {INSTALL}", code="package-missing"
    )


def _quiet() -> None:
    """Set the variables that these libraries read on import: no telemetry, and no code from the hub."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ["USE_HUB_KERNELS"] = "NO"
