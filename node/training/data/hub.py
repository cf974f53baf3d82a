"""Downloads from Hugging Face's hub: tokenizers and streamed datasets, at the commit that the manifest names.

The manifest may come from another peer, so only public data are read: no local folder, and without a login. An error is
a TransportError if a later try may succeed, else a LocalError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.node.base import extra
from shoal.node.manifest.data import HUB, DataSpec, StreamSpec
from shoal.protocol.base.errors import LocalError, ShoalError, TransportError

TOKENIZER_FILE = "tokenizer.json"
HUB_DATASETS = "hf://datasets/"  # prefix that makes the library take the hub's dataset and no local folder of its name
HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests")  # whose errors need not be OSErrors
RETRY_STATUSES = (408, 429)  # statuses below 500 that ask for another try


def from_hub(spec: DataSpec) -> bytes:
    """The content of the tokenizer.json in the repository that the manifest names."""
    extra.tokenizers()
    from huggingface_hub import hf_hub_download

    repository, _, revision = spec.tokenizer.removeprefix(HUB).partition("@")
    try:
        path = hf_hub_download(repository, TOKENIZER_FILE, revision=revision, token=False)
        with open(path, "rb") as file:
            return file.read()
    except Exception as error:  # from the network, the hub or the disk
        raise _hub_error(f"cannot get the tokenizer {spec.tokenizer}", error) from error


def open_stream(spec: StreamSpec) -> Any:
    """Opens the dataset for streaming: an IterableDataset of `datasets`."""
    try:
        builder = extra.datasets().load_dataset_builder(
            HUB_DATASETS + spec.dataset, spec.subset or None, revision=spec.revision, token=False
        )
        _check_files(spec, builder.config.data_files)
        return builder.as_streaming_dataset(split=spec.split)
    except LocalError:
        raise
    except Exception as error:  # from the network, the hub or its files
        raise _hub_error(f"cannot stream {spec.dataset}", error) from error


def _check_files(spec: StreamSpec, files: Mapping[str, Sequence[str]] | None) -> None:
    """LocalError unless all files belong to the dataset: its card could name any path, even on this machine."""
    begin = f"{HUB_DATASETS}{spec.dataset}@"
    named = [str(each) for several in (files or {}).values() for each in several]
    foreign = [each for each in named if not each.startswith(begin) or "::" in each]
    if foreign or not named:
        what = f"names the file {foreign[0]}, which is not its own" if foreign else "names no files"
        raise LocalError(f"cannot stream {spec.dataset}: its card {what}", code="data-unusable")


def _hub_error(what: str, error: Exception) -> ShoalError:
    """The error to raise, whose text begins with `what`: TransportError if a later try may succeed, else LocalError."""
    kind = TransportError if _is_temporary(error) else LocalError
    return kind(f"{what}: {type(error).__name__}: {error}")


def _is_temporary(error: Exception) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in RETRY_STATUSES or status >= 500
    if isinstance(error, FileNotFoundError):  # the hub has no such dataset or file, or (temporary) was not reached
        return type(error).__name__ == "LocalEntryNotFoundError"
    if isinstance(error, PermissionError):  # in our own cache
        return False
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in HTTP_LIBRARIES
