"""CPU time of a training step of ``examples/digits`` beside PyTorch, in one run, taking turns.

    OPENBLAS_NUM_THREADS=1 python -m tests.bench.training

It needs PyTorch (the extra "conformance"). Both are on one thread: NumPy's by the variable.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from opdispatch import Tensor
from opdispatch.autograd import grad
from tests.digits_example import digits, make_task, train

BATCHES, ROUNDS = 40, 15


def make_steps(dtype: str) -> tuple[list[Callable[[], Any]], list[Callable[[], Any]]]:
    """Return the steps of each batch, ours and PyTorch's, of the same parameters."""
    import torch_twin  # beside the example

    arrays, batches = make_task(BATCHES, train.BATCH, dtype)
    parameters = [Tensor(each.copy(), requires_grad=True) for each in arrays]
    velocities = [Tensor(np.zeros_like(each)) for each in arrays]
    step = train.make_step(digits.compute_loss, digits.step_sgd, grad, parameters, velocities)
    theirs = [torch.tensor(each, requires_grad=True) for each in arrays]
    optimizer = torch.optim.SGD(theirs, lr=train.LR, momentum=train.MOMENTUM)

    def their_step(images: Any, labels: Any) -> Any:
        logits = torch_twin.compute_logits(theirs, images)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return (
        [partial(step, Tensor(images), Tensor(labels)) for images, labels in batches],
        [partial(their_step, *map(torch.from_numpy, batch)) for batch in batches],
    )


def time_steps(dtype: str) -> tuple[list[float], list[float]]:
    """Return the seconds of each step, ours and PyTorch's."""
    seconds: tuple[list[float], list[float]] = ([], [])
    steps = make_steps(dtype)
    for pair in [*zip(*steps, strict=True)] * ROUNDS:
        for found, call in zip(seconds, pair, strict=True):
            begun = time.thread_time()
            call().item()
            found.append(time.thread_time() - begun)
    return seconds


def count_functions(dtype: str) -> int:
    """Return how many Python functions a step enters."""
    first, second, *_ = make_steps(dtype)[0]
    first()
    entered = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(note)
    try:
        second()
    finally:
        sys.setprofile(None)
    return entered


def main() -> None:
    """Time and print."""
    torch.set_num_threads(1)
    table = Table(title=f"a step of {train.BATCH} images, and how many times PyTorch's it takes")
    for heading in ("elements", "here, us", "torch, us", "least", "median", "functions entered"):
        table.add_column(heading, justify="right")
    for dtype in ("float64", "float32"):
        ours, theirs = time_steps(dtype)
        medians = [a / b for a, b in zip(ours, theirs, strict=True)]
        table.add_row(
            dtype,
            f"{min(ours) * 1e6:.0f}",
            f"{min(theirs) * 1e6:.0f}",
            f"{min(ours) / min(theirs):.2f}",
            f"{statistics.median(medians):.2f}",
            str(count_functions(dtype)),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
