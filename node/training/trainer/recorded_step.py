"""A step of training that is recorded on the GPU and then played again, without Python.

A step of a small model is hundreds of tiny operations, and a GPU is done with one long before Python has started the
next. So the first steps are made as they are written, which also makes the optimizer's state; then one is recorded as a
CUDA graph, and from then on each step is a copy of its tokens and one launch. The step must do the same every time, on
memory that stays where it is: weights, moments and the learning rate are changed in place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

AS_WRITTEN = 3  # steps before it is recorded; libraries that a step loads cannot be loaded while recording


class NotRecordedError(RuntimeError):
    """The step could not be recorded; nothing of it was done."""


class RecordedStep:
    """Calls `step` with tokens on `device`, or plays what it did; another batch size begins anew."""

    def __init__(self, step: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._step = step
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._tokens = torch.empty(0, device=device)
        self._loss = torch.empty(0, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._made = 0

    def __call__(self, tokens: Tensor) -> Tensor:
        """The loss of one step with these tokens, which are the CPU's; it is overwritten by the next.

        NotRecordedError, with what was wrong as its cause, if it was to be recorded and could not be.
        """
        if tokens.shape != self._tokens.shape:
            self._tokens, self._graph, self._made = torch.empty_like(tokens, device=self._tokens.device), None, 0
        current = torch.cuda.current_stream(self._tokens.device)
        self._stream.wait_stream(current)  # weights that are being loaded
        with torch.cuda.stream(self._stream):
            self._tokens.copy_(tokens)
            self._made += 1
            if self._made <= AS_WRITTEN:
                self._loss = self._step(self._tokens)
            else:
                self._recorded().replay()
        current.wait_stream(self._stream)
        return self._loss

    def _recorded(self) -> torch.cuda.CUDAGraph:
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=self._stream):  # notes what would be done, and does nothing
                    self._loss = self._step(self._tokens)
            except Exception as error:
                raise NotRecordedError(f"the step cannot be recorded: {error}") from error
            self._graph = graph
        return self._graph
