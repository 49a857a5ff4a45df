"""Trains the network of ``digits.py`` on scikit-learn's digits, and draws how.

    python train.py [--steps N] [--daemon] [--address ADDRESS] [--dtype float32] [-o losses.png]

In this process; with ``--daemon`` in an interpreter as well, in three ways; and by PyTorch, where
it is installed. All begin with the same parameters and are given the same batches.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import digits
import numpy as np

import opdispatch_client as oc
from opdispatch import Tensor, ops
from opdispatch.autograd import grad

LIBRARY = Path(__file__).with_name("digits.py")
HELD_OUT = 297
BATCH = 64
LR, MOMENTUM = 0.05, 0.9

# -- data ------------------------------------------------------------------------------------------


def load_data(dtype=np.float64):
    """Images (n, 1, 8, 8) from 0 to 1 with their labels: those to learn of, and the others."""
    from sklearn.datasets import load_digits  # takes longer than all the other imports

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images[order, np.newaxis] / 16).astype(dtype)
    labels = data.target[order].astype(np.int64)
    return (images[HELD_OUT:], labels[HELD_OUT:]), (images[:HELD_OUT], labels[:HELD_OUT])


def choose_batches(data, steps, size=BATCH):
    """Choose batches, each epoch in an order of its own; the rest at its end is left out."""
    rng = np.random.default_rng(1)
    images, labels = data
    batches = []
    while len(batches) < steps:
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            batches.append((images[chosen], labels[chosen]))
    return batches[:steps]


# -- training --------------------------------------------------------------------------------------


def run_steps(step, batches):
    """Return the loss of each step, and how long each took, in seconds."""
    losses, seconds = [], []
    for images, labels in batches:
        begun = time.perf_counter()
        losses.append(float(step(images, labels)))
        seconds.append(time.perf_counter() - begun)
    return losses, seconds


def make_step(compute_loss, step_sgd, grad, parameters, velocities):
    """Make a step, wherever the parameters are."""

    def step(images, labels):
        loss = compute_loss(parameters, images, labels)
        gradients = grad(loss, parameters)
        for parameter, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
            step_sgd(parameter, gradient, velocity, LR, MOMENTUM)
        return loss

    return step


def train_here(arrays, batches):
    parameters = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    velocities = [Tensor(np.zeros_like(array)) for array in arrays]
    step = make_step(digits.compute_loss, digits.step_sgd, grad, parameters, velocities)
    tensors = ((Tensor(images), Tensor(labels)) for images, labels in batches)
    return *run_steps(step, tensors), [each.detach().numpy() for each in parameters]


WAYS = ("daemon, operator by operator", "daemon, 8 calls a step", "daemon, a program a step")


def train_there(session, arrays, batches, way):
    """Train in the interpreter of a session, which has both libraries."""
    parameters = [session.put(Tensor(array, requires_grad=True)) for array in arrays]
    velocities = [session.put(np.zeros_like(array)) for array in arrays]
    there = session.grad, parameters, velocities
    if way == "daemon, operator by operator":
        step = make_step(digits.compute_loss, digits.step_sgd, *there)
    elif way == "daemon, 8 calls a step":
        step = make_step(ops.digits.loss, ops.digits.sgd_, *there)
    else:
        # Placeholders take part in operators of the session, and its results are arrays.
        calls = session.ops.digits
        step = session.as_program(make_step(calls.loss, calls.sgd_, *there))
    remote = ((session.put(images), session.put(labels)) for images, labels in batches)
    return *run_steps(step, remote), [each.numpy() for each in parameters]


@contextmanager
def running_daemon():
    """Run a daemon with one interpreter; yield its address."""
    with tempfile.TemporaryDirectory(prefix="opdispatch-digits-") as folder:
        address = f"unix://{folder}/daemon.sock"
        serve = ("serve", "--listen", address, "--workers", "1", "--state", f"{folder}/state")
        process = subprocess.Popen(
            [sys.executable, "-m", "opdispatch_client.cli", *serve, "--log-level", "error"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            if "listening" not in process.stdout.readline():
                sys.exit("the daemon did not start")
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)


def train_everywhere(arrays, batches, *, with_daemon, address):
    """Return losses, seconds a step, and the final parameters, by the name of each way."""
    results = {"in this process": train_here(arrays, batches)}
    if with_daemon:
        with (
            nullcontext(address) if address else running_daemon() as address,
            oc.connect(address) as session,
        ):
            place = session.load(LIBRARY).interpreters[0]
            session.load("opdispatch.array_library", on=place)
            for way in WAYS:
                results[way] = train_there(session, arrays, batches, way)
    try:
        import torch_twin
    except ImportError:
        print("PyTorch is not installed: there is no twin to compare with")
    else:
        results["PyTorch"] = torch_twin.train(arrays, batches, LR, MOMENTUM)
    return results


# -- what came of it -------------------------------------------------------------------------------


def choose_reference(results):
    """Choose the run that the others are compared with."""
    return "PyTorch" if "PyTorch" in results else "in this process"


def print_results(results, held_out):
    images, labels = held_out
    reference = results[choose_reference(results)][0]
    print(f"{'':30}{'steps/s':>9}{'last loss':>11}{'right':>8}{'largest difference':>20}")
    for name, (losses, seconds, parameters) in results.items():
        logits = np.asarray(digits.compute_logits([Tensor(p) for p in parameters], Tensor(images)))
        right = np.mean(logits.argmax(axis=1) == labels)
        difference = np.abs(np.subtract(losses, reference)).max()
        print(
            f"{name:30}{1 / statistics.median(seconds):9.0f}{losses[-1]:11.6f}{right:8.1%}"
            f"{difference:20.1e}"
        )


def draw(results, held_out, path):
    """Draw the curves, how far each is from PyTorch's, and the network's answers to some digits."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[3.2, 1])
    curves, differences = top.subplots(1, 2)
    reference = choose_reference(results)
    for n, (name, (losses, _, _)) in enumerate(results.items()):
        curves.semilogy(losses, label=name, linewidth=6 - 4 * n / max(1, len(results) - 1))
        if name != reference:
            distance = np.abs(np.subtract(losses, results[reference][0]))
            differences.semilogy(np.where(distance, distance, np.nan), linewidth=1, label=name)
    curves.set(title="loss", xlabel="step")
    curves.legend(fontsize="small")
    whose = "PyTorch's" if reference == "PyTorch" else "those in this process"
    differences.set(title=f"difference from {whose}", xlabel="step")
    images, labels = held_out
    parameters = [Tensor(array) for array in results["in this process"][2]]
    guessed = np.asarray(digits.compute_logits(parameters, Tensor(images))).argmax(axis=1)
    is_right = guessed == labels
    shown = [*np.flatnonzero(~is_right)[:6], *np.flatnonzero(is_right)][:12]
    for axes, n in zip(bottom.subplots(1, len(shown)), shown, strict=True):
        axes.imshow(images[n, 0], cmap="gray_r")
        axes.set(xticks=[], yticks=[])
        title = guessed[n] if is_right[n] else f"{guessed[n]}? a {labels[n]}"
        axes.set_title(title, fontsize=8)
    figure.savefig(path, dpi=75)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    parser.add_argument("--daemon", action="store_true", help="train in an interpreter, too")
    parser.add_argument("--address", help="of a daemon that runs already")
    parser.add_argument("-o", "--output", type=Path, default=Path("losses.png"))
    options = parser.parse_args()

    dtype = np.dtype(options.dtype)
    learned, held_out = load_data(dtype)
    batches = choose_batches(learned, options.steps)
    arrays = list(digits.make_parameters(dtype).values())
    with_daemon = options.daemon or bool(options.address)
    results = train_everywhere(arrays, batches, with_daemon=with_daemon, address=options.address)
    print_results(results, held_out)
    draw(results, held_out, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
