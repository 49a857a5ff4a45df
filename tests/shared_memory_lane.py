"""The least that carries calls with shared memory between two processes: for tests and timings.

Packets over a socketpair, descriptors beside them. ``Caller`` is one end; the other is a process
that serves ``KERNELS``.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from opdispatch.schema.parser import parse_schema
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.calls import (
    call_request,
    decode_arguments,
    reply_of_returns,
    result_of_reply,
)
from opdispatch_wire.errors import WireError
from opdispatch_wire.shared_memory.call_memory import (
    THRESHOLD,
    CalleeMemory,
    CallerMemory,
    ResultBlocks,
)
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.peer_memory import LentMemory, PeerMemory
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2 as pb
from tests.waits import LONGEST_WAIT

# Not the other memfds of ours, whose names are longer.
REGION = "memfd:opdispatch "
MAX_PACKET = 1 << 17
MAX_DESCRIPTORS = 8
PLACE = struct.Struct("<IQ")
KEPT: list[Any] = []

# The peers are forked from one process that has imported all they need, and has no threads.
PEERS = multiprocessing.get_context("forkserver")
PEERS.set_forkserver_preload([__name__])


def keep(x: Any) -> None:
    KEPT.append(x[1:-1])


def write_later(x: Any, value: float) -> None:
    """Write to what an earlier call kept."""
    KEPT[-1][...] = value


def add_in_place(x: Any, y: Any) -> None:
    np.add(x, y, out=x)


def double_all(xs: list[Any]) -> None:
    for x in xs:
        array = x.array if isinstance(x, Tensor) else x
        array *= 2


def fail(x: Any) -> None:
    x += 1
    raise ValueError("on purpose")


KERNELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "add": ("t::add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y),
    "add_out": (
        "t::add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)",
        lambda x, y, out: np.add(x, y, out=out),
    ),
    "add_": ("t::add_(Tensor(a!) x, Tensor y) -> ()", add_in_place),
    "first": ("t::first(Tensor[] xs) -> Tensor", lambda xs: xs[0]),
    "double_all_": (
        "t::double_all_(Tensor(a!)[] xs) -> ()",
        double_all,
    ),
    "touch": ("t::touch(Tensor x) -> int", lambda x: int(x.flat[0])),
    "flags": ("t::flags(Tensor x) -> bool", lambda x: bool(x.flags.writeable)),
    "keep": ("t::keep(Tensor x) -> ()", keep),
    "keep_": ("t::keep_(Tensor(a!) x) -> ()", keep),
    "write_later": ("t::write_later(Tensor x, float value) -> ()", write_later),
    "kept": ("t::kept() -> float[]", lambda: [float(k.sum()) for k in KEPT]),
    "forget": ("t::forget() -> ()", KEPT.clear),
    "fail": ("t::fail(Tensor(a!) x) -> ()", fail),
    "signal": ("t::signal() -> ()", lambda: None),
}


class Packets:
    """Numbered kinds of packets with descriptors beside them."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.passed: set[int] = set()

    def send(self, kind: bytes, body: bytes = b"", descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.sock, [kind + body], descriptors)

    def receive(self) -> tuple[bytes, bytes, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.sock, MAX_PACKET, MAX_DESCRIPTORS)
        return data[:1], data[1:], descriptors

    def pass_regions(self, arena: TensorArena, regions: set[int]) -> None:
        for region in regions - self.passed:
            self.send(b"R", struct.pack("<I", region), (arena.descriptor(region),))
            self.passed.add(region)


def own_mappings() -> dict[str, int]:
    """How many descriptors and mappings of regions for tensors this process has."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    descriptors = [1 for link in links if REGION in str(read_link(link))]
    return {
        "descriptors": len(descriptors),
        "mappings": sum(REGION in line for line in maps),
    }


def read_link(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # the descriptor that listed the folder
        return ""


class Caller:
    """Calls the kernels of another process."""

    def __init__(self, *, limit: int | None = None, threshold: int = THRESHOLD) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(LONGEST_WAIT)
        with theirs:
            self.process = PEERS.Process(target=serve, args=(theirs,))
            self.process.start()
        self.packets = Packets(ours)
        self.arena = TensorArena(budget=MemoryBudget(limit), on_drop=self._drop)
        self.peer = PeerMemory()
        self.released: deque[tuple[int, int]] = deque()
        self.threshold = threshold

    def _drop(self, region: int) -> None:
        if region in self.packets.passed and self.process.is_alive():
            self.packets.send(b"D", struct.pack("<I", region))

    def on_release(self, region: int, offset: int) -> None:
        self.released.append((region, offset))

    def memory(self) -> CallerMemory:
        return CallerMemory(
            self.arena, self.peer, on_release=self.on_release, threshold=self.threshold
        )

    def send(self, name: str, *args: Any, **kwargs: Any) -> CallerMemory:
        memory = self.memory()
        request = call_request(name, args, kwargs, memory=memory)
        self.packets.pass_regions(self.arena, memory.placed.regions)
        self.packets.send(b"C", self.taken_releases() + request.SerializeToString())
        return memory

    def taken_releases(self) -> bytes:
        """The results that are no longer looked at; a packet of their own would wake the peer."""
        places = [self.released.popleft() for _ in range(len(self.released))]
        return struct.pack("<I", len(places)) + b"".join(PLACE.pack(*place) for place in places)

    def receive(self) -> tuple[bytes, bytes]:
        while True:
            kind, body, descriptors = self.packets.receive()
            if kind != b"R":
                return kind, body
            self.peer.add_region(struct.unpack("<I", body)[0], descriptors[0])

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        memory = self.send(name, *args, **kwargs)
        try:
            reply = pb.CallReply.FromString(self.receive()[1])
            return result_of_reply(reply, args, kwargs, memory)
        finally:
            memory.release()

    def state(self) -> dict[str, int]:
        """Return the other process's counters, after it has been told of collected values."""
        self.packets.send(b"S", self.taken_releases())
        return json.loads(self.receive()[1])  # type: ignore[no-any-return]

    def close(self) -> None:
        self.packets.sock.close()
        self.packets.passed.clear()  # no peer is left to hear it
        self.process.join(LONGEST_WAIT)
        self.arena.close()
        self.peer.close()


def serve(sock: socket.socket) -> None:
    """Serve one caller until it is gone."""
    packets, peer, results = Packets(sock), PeerMemory(), ResultBlocks()
    arena = TensorArena()
    kernels = {name: (parse_schema(text), kernel) for name, (text, kernel) in KERNELS.items()}
    while True:
        kind, body, descriptors = packets.receive()
        if kind == b"R":
            peer.add_region(struct.unpack("<I", body)[0], descriptors[0])
        elif kind == b"D":
            peer.drop_region(struct.unpack("<I", body)[0])
        elif kind == b"S":
            release(results, body)
            packets.send(b"S", json.dumps(own_mappings() | {"results": len(results)}).encode())
        elif kind == b"C":
            request = pb.CallRequest.FromString(release(results, body))
            schema, kernel = kernels[request.operator]
            memory = CalleeMemory(arena, LentMemory(peer, lambda *_: None))
            if any(argument.is_write for argument in schema.arguments):
                memory.expect_writes()
            reply = answer(request, schema, kernel, memory)
            assert memory.release_arguments() == []
            results.hold(memory.placed)
            packets.pass_regions(arena, memory.placed.regions)
            packets.send(b"A", reply.SerializeToString())
        else:
            return


def release(results: ResultBlocks, body: bytes) -> bytes:
    """Release what stands in front of a packet's body, and return the rest."""
    end = 4 + PLACE.size * struct.unpack_from("<I", body)[0]
    for place in PLACE.iter_unpack(body[4:end]):
        results.release(*place)
    return body[end:]


def answer(request: Any, schema: Any, kernel: Any, memory: CalleeMemory) -> pb.CallReply:
    """Run the kernel; nothing of the call is held when this returns."""
    try:
        args, kwargs = decode_arguments(request, schema, memory)
        returns = kernel(*args, **kwargs)
        if not isinstance(returns, tuple):
            returns = (returns,) * len(schema.returns)
        stack = [*args, *kwargs.values()]
        return reply_of_returns(request, schema, stack, returns, memory=memory)
    except (ValueError, WireError) as exc:
        error = exc if isinstance(exc, WireError) else WireError(str(exc))
        return pb.CallReply(id=request.id, error=status_from_error(error))
