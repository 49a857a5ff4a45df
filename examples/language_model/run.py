"""Greedy decoding through the service: weights and caches stay in the interpreter.

    python run.py [--address ADDRESS] [--device cuda] [--json FILE]

Without an address it starts a daemon of its own. One small transformer decodes one text in three
ways: each token as one program, as calls one by one, and in this process. With ``--json`` the
figures are written to a file, for ``draw.py``.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import lm  # noqa: F401  registers the operators in this process, too
import numpy as np
from rich.console import Console
from rich.table import Table
from transformer import (
    TEXT,
    Config,
    choose_tokens,
    compute_hidden,
    decode,
    encode,
    fit_output_layer,
    make_caches,
    make_weights,
)

import opdispatch.array_library  # noqa: F401
import opdispatch_client as oc
from opdispatch import ops

LIBRARY = Path(__file__).resolve().parent / "lm"
PROMPT = TEXT[:8]
ROUNDS = 2

console = Console(highlight=False)


@contextmanager
def running_daemon():
    """Run a daemon with one interpreter; yield its address."""
    with tempfile.TemporaryDirectory(prefix="opdispatch-lm-") as folder:
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


def make_step(ops, config, weights, caches):
    """Return a function that takes tokens and their positions to the tokens that follow them."""

    def step(tokens, positions):
        hidden = compute_hidden(ops, config, weights, caches, tokens, positions)
        return choose_tokens(ops, weights, hidden)

    return step


def generate(step, count):
    """Return the text that follows the prompt, and the seconds that each of its characters took."""
    prompt = encode(PROMPT)
    token = np.asarray(step(prompt, np.arange(len(prompt))))[-1:]
    tokens, seconds = [token[0]], []
    for position in range(len(prompt), len(prompt) + count - 1):
        begun = time.perf_counter()
        token = np.asarray(step(token, np.array([position])))
        seconds.append(time.perf_counter() - begun)
        tokens.append(token[0])
    return decode(tokens), seconds


def measure(steps, count):
    """Milliseconds a token of each way: they take turns, and the median counts."""
    seconds = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            text, times = generate(step, count)
            if text != TEXT[len(PROMPT) :][:count]:
                sys.exit(f"{name}: decoded {text!r}, expected {TEXT!r}")
            seconds[name] += times
    return {name: 1e3 * statistics.median(times) for name, times in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="of a daemon that runs already")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: where the model lives")
    parser.add_argument("--tokens", type=int, default=len(TEXT) - len(PROMPT))
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()

    config = Config()
    weights = fit_output_layer(ops, config, make_weights(config), encode(TEXT))
    daemon = nullcontext(options.address) if options.address else running_daemon()
    with daemon as address, oc.connect(address) as session:
        place = session.load(LIBRARY, on=options.device).interpreters[0]
        session.load("opdispatch.array_library", on=place)
        calls = session.with_options(remote=True)

        def put(array):
            return calls.ops.lm.to(session.put(array, on=place), options.device)

        there = {name: put(array) for name, array in weights.items()}

        def put_caches():
            return [(put(keys), put(values)) for keys, values in make_caches(config)]

        caches = put_caches()
        program = session.as_program(make_step(session.ops, config, there, caches))
        steps = {
            "one program": program,
            "calls one by one": make_step(calls.ops, config, there, put_caches()),
            "in this process": make_step(ops, config, weights, make_caches(config)),
        }
        text, _ = generate(program, options.tokens)
        console.print(f"[bold]{PROMPT}[/]{text.rstrip()}", soft_wrap=True)
        stays = [*there.values(), *(each for layer in caches for each in layer)]
        size = sum(each.nbytes for each in stays)
        console.print(f"{len(stays)} weights and caches, {size:,} bytes, stay in {place}")
        milliseconds = measure(steps, options.tokens)

    table = Table(title=f"{options.tokens} tokens, {ROUNDS} times", title_justify="left")
    for heading in ("each token", "ms", "tokens/s"):
        table.add_column(heading, justify="left" if heading == "each token" else "right")
    for name, each in milliseconds.items():
        table.add_row(name, f"{each:.1f}", f"{1e3 / each:.0f}")
    console.print(table)
    console.print("tensors that move for a token: its number and position there, a number back")
    if options.json:
        options.json.write_text(json.dumps(milliseconds, indent=2) + "\n")


if __name__ == "__main__":
    main()
