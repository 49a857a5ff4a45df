"""Triton Inference Server's Python backend, over its gRPC endpoint, as PyTriton starts it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import sysconfig
from collections.abc import Callable

import numpy as np
import tritonclient.grpc as triton
from conversation import converse
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def add_arrays(requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The model: one sum for each request."""
    return [{"sum": request["x"] + request["y"]} for request in requests]


def use_own_library() -> None:
    """Run the server's models in the library of this Python, and not in the system's."""
    folder = str(sysconfig.get_config_var("LIBDIR"))
    if os.environ.get("LD_LIBRARY_PATH") != folder:
        os.environ["LD_LIBRARY_PATH"] = folder
        os.execv(sys.executable, (sys.executable, *sys.argv))


def main() -> None:
    """The server, and the conversation."""
    use_own_library()
    ports = {"http_port": free_port(), "grpc_port": free_port(), "metrics_port": free_port()}
    tensors = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in ("x", "y")]
    # What the server prints is not part of the conversation.
    with (
        contextlib.redirect_stdout(sys.stderr),
        Triton(config=TritonConfig(log_verbose=0, allow_metrics=False, **ports)) as server,
    ):
        server.bind(
            model_name="add",
            infer_func=add_arrays,
            inputs=tensors,
            outputs=[Tensor(name="sum", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(batching=False),
        )
        server.run()
        client = triton.InferenceServerClient(f"127.0.0.1:{ports['grpc_port']}")

        def inputs_of(elements: int) -> list[triton.InferInput]:
            array, inputs = np.ones(elements, np.float32), []
            for name in ("x", "y"):
                value = triton.InferInput(name, [elements], "FP32")
                value.set_data_from_numpy(array)
                inputs.append(value)
            return inputs

        def add(elements: int) -> Callable[[], object]:
            array = np.ones(elements, np.float32)

            def call() -> object:
                inputs = []
                for name in ("x", "y"):
                    value = triton.InferInput(name, [elements], "FP32")
                    value.set_data_from_numpy(array)
                    inputs.append(value)
                return client.infer("add", inputs).as_numpy("sum")

            return call

        def many(count: int, in_flight: int) -> None:
            done: queue.SimpleQueue[object] = queue.SimpleQueue()
            for number in range(count + in_flight):
                if number >= in_flight:
                    done.get()
                if number < count:
                    client.async_infer(
                        "add", inputs_of(4), lambda result, error: done.put(result or error)
                    )

        with contextlib.redirect_stdout(sys.__stdout__):
            converse(add, many)


if __name__ == "__main__":
    main()
