"""Work for a GPU by the second: matrix products in half precision, each thread on a stream of its own."""

from __future__ import annotations

import time
from typing import Any

#: Side of the matrices; one product takes about a millisecond on a card of the Hopper generation.
SIDE = 8192


class Load:
    """Keeps a card busy. Needs torch with CUDA."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._stream = torch.cuda.Stream()
        with torch.cuda.stream(self._stream):
            self._left = torch.randn(SIDE, SIDE, dtype=torch.float16, device="cuda")
            self._right = torch.randn(SIDE, SIDE, dtype=torch.float16, device="cuda")
            self._out: Any = torch.empty_like(self._left)
        self.run(0.2)

    def run(self, seconds: float) -> int:
        """Multiply for so many seconds; return the number of products. Everything has ended when it returns."""
        self._torch.cuda.set_device(0)  # a new thread has no context yet
        end = time.perf_counter() + seconds
        products = 0
        with self._torch.cuda.stream(self._stream):
            while time.perf_counter() < end:
                self._torch.matmul(self._left, self._right, out=self._out)
                products += 1
                if products % 4 == 0:  # a long queue of kernels would go on after the last second
                    self._stream.synchronize()
            self._stream.synchronize()
        return products
