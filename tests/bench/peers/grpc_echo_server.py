"""A bare gRPC server on loopback that sends back whatever comes on a stream; it prints its port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    """Send each message back."""
    async for request in requests:
        await context.write(request)


async def main() -> None:
    """Serve until the process is ended."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler = grpc.stream_stream_rpc_method_handler(echo)
    service = grpc.method_handlers_generic_handler("Echo", {"Go": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
