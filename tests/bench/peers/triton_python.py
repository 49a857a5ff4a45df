"""Triton Inference Server with a model in its own Python backend, over its gRPC endpoint.

The server's binaries are those in the wheel ``nvidia-pytriton``; nothing of PyTriton runs: it would
add a process, and a hop from the server to that.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from conversation import converse

START_SECONDS = 60
MODEL = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        x, y = (pb.get_input_tensor_by_name(request, name).as_numpy() for name in ("x", "y"))
        return pb.InferenceResponse(output_tensors=[pb.Tensor("sum", x + y)])
"""
CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }, { name: "y" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "sum" data_type: TYPE_FP32 dims: [-1] }]

"""


def free_port() -> int:
    """Return a port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """Run a server with the model ``add``; yield its address."""
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pytriton")
    installed = Path(spec.origin).parent / "tritonserver"
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "models" / "add" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIGURATION)
        backends = Path(folder) / "backends"
        shutil.copytree(installed / "backends", backends)
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = installed / "python_backend_stubs" / python / "triton_python_backend_stub"
        shutil.copy(stub, backends / "python")
        libraries = [
            str(sysconfig.get_config_var("LIBDIR")),
            str(installed.parents[1] / "nvidia_pytriton.libs"),
        ]
        address = f"127.0.0.1:{free_port()}"
        server = subprocess.Popen(
            [
                installed / "bin" / "tritonserver",
                f"--model-repository={folder}/models",
                f"--backend-directory={backends}",
                "--grpc-address=127.0.0.1",
                f"--grpc-port={address.partition(':')[2]}",
                "--allow-http=false",
                "--allow-metrics=false",
            ],
            stdout=sys.stderr,  # what it prints is not part of the conversation
            env={
                **os.environ,
                "LD_LIBRARY_PATH": ":".join(libraries),
                # The interpreter of models finds its packages by the first Python there.
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )
        try:
            yield address
        finally:
            server.terminate()
            server.wait(30)


def wait_until_ready(client: triton.InferenceServerClient) -> None:
    """Wait for the model. Raises TimeoutError."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(triton.InferenceServerException):
            if client.is_model_ready("add"):
                return
        time.sleep(0.1)
    raise TimeoutError("the model add of Triton is not ready")


def main() -> None:
    """Run the server, and the conversation."""
    with running_server() as address:
        client = triton.InferenceServerClient(address)
        wait_until_ready(client)

        def inputs_of(array: np.ndarray) -> list[triton.InferInput]:
            inputs = []
            for name in ("x", "y"):
                value = triton.InferInput(name, [array.size], "FP32")
                value.set_data_from_numpy(array)
                inputs.append(value)
            return inputs

        def add(elements: int) -> Callable[[], object]:
            array = np.ones(elements, np.float32)
            return lambda: client.infer("add", inputs_of(array)).as_numpy("sum")

        def many(count: int, in_flight: int) -> None:
            done: queue.SimpleQueue[object] = queue.SimpleQueue()
            array = np.ones(4, np.float32)
            for number in range(count + in_flight):
                if number >= in_flight:
                    done.get()
                if number < count:
                    client.async_infer(
                        "add", inputs_of(array), lambda result, error: done.put(result or error)
                    )

        converse(add, many)


if __name__ == "__main__":
    main()
