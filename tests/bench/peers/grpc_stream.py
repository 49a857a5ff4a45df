"""A bare echo over one open gRPC stream on loopback, asyncio serving: the bytes of a call."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
from conversation import converse

SERVER = Path(__file__).with_name("grpc_echo_server.py")


def main() -> None:
    """The server in a process of its own, and the conversation."""
    command = (sys.executable, str(SERVER))
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        address = f"127.0.0.1:{int(server.stdout.readline())}"
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(address, options=options) as channel:
            requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            replies = channel.stream_stream("/Echo/Go")(iter(requests.get, None))

            def add(elements: int) -> Callable[[], object]:
                payload = bytes(8 * elements)

                def call() -> object:
                    requests.put(payload)
                    return next(replies)

                return call

            def many(count: int, in_flight: int) -> None:
                for number in range(count + in_flight):
                    if number < count:
                        requests.put(bytes(32))
                    if number >= in_flight:
                        next(replies)

            converse(add, many)
            requests.put(None)
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
