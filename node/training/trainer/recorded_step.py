"""A training step that is recorded on the GPU as a CUDA graph and then replayed, without Python.

A step of a small model consists of hundreds of tiny operations, and a GPU finishes each long before Python has started
the next. So the first steps run normally, which also creates the optimizer's state. Then one is recorded, and from then
on each step is a copy of its tokens and one launch. The step must do the same every time, on the same memory: weights,
moments and the learning rate are changed in place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

WARMUP_STEPS = 3  # before recording: libraries that a step needs cannot be loaded while recording


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all recorded steps: for each one that it has seen, cuBLAS keeps memory for good, up to 64 MiB."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class NotRecordedError(RuntimeError):
    """The step could not be recorded; it has changed nothing."""


class RecordedStep:
    """Calls `step` with tokens on `device`, or replays its recording; another batch size starts over."""

    def __init__(self, step: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._step = step
        self._stream = _stream(device)
        self._tokens = torch.empty(0, device=device)
        self._loss = torch.empty(0, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made = 0

    def __call__(self, tokens: Tensor) -> Tensor:
        """Makes one step with these tokens, which are on the CPU; returns its loss, which the next step overwrites.

        Raises NotRecordedError from the original error if recording fails.
        """
        if tokens.shape != self._tokens.shape:
            self._tokens, self._graph, self._made = torch.empty_like(tokens, device=self._tokens.device), None, 0
        current = torch.cuda.current_stream(self._tokens.device)
        self._stream.wait_stream(current)  # weights may still be loading
        with torch.cuda.stream(self._stream):
            self._tokens.copy_(tokens)
            self._made += 1
            if self._made <= WARMUP_STEPS:
                self._loss = self._step(self._tokens)
            else:
                self._recorded().replay()
        current.wait_stream(self._stream)
        return self._loss

    def _recorded(self) -> torch.cuda.CUDAGraph:
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=self._stream):  # records operations without running them
                    self._loss = self._step(self._tokens)
            except Exception as error:
                raise NotRecordedError(f"the step cannot be recorded: {error}") from error
            self._graph = graph
        return self._graph
