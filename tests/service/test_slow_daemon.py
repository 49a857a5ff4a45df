"""An interpreter whose daemon is slow to answer, which is the test's own."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc

from opdispatch_wire.lanes import lane_socket
from opdispatch_wire.v1 import interpreter_pb2 as pb
from opdispatch_wire.v1 import interpreter_pb2_grpc
from tests.service.test_remote_lifetimes import FAR
from tests.unit.lane_peer import Peer
from tests.waits import LONGEST_WAIT, join


class SlowDaemon(interpreter_pb2_grpc.InterpreterServiceServicer):  # type: ignore[misc]
    """Welcomes one interpreter, and is silent on its local lane for as long as the test is."""

    def __init__(self, lane: str) -> None:
        self.heard: queue.SimpleQueue[pb.InterpreterMessage] = queue.SimpleQueue()
        self.says: queue.SimpleQueue[pb.DaemonMessage] = queue.SimpleQueue()
        self.says.put(
            pb.DaemonMessage(
                welcome=pb.Welcome(
                    name="far", max_message_bytes=1 << 20, lane=lane, heartbeat_seconds=0.02
                )
            )
        )

    def Session(  # noqa: N802
        self, messages: Iterator[pb.InterpreterMessage], context: object
    ) -> Iterator[pb.DaemonMessage]:
        """Say what the test has it say, up to the goodbye."""
        hearing = threading.Thread(target=self._hear, args=(messages,))
        hearing.start()
        while True:
            yield (message := self.says.get(timeout=LONGEST_WAIT))
            if message.HasField("goodbye"):
                break
        join(hearing)

    def _hear(self, messages: Iterator[pb.InterpreterMessage]) -> None:
        try:
            for message in messages:
                self.heard.put(message)
        except grpc.RpcError:  # it has hung up
            pass


def test_an_interpreter_says_that_it_lives_while_the_daemon_is_slow_to_open_a_lane(tmp_path: Path):
    address, path = f"unix:{tmp_path / 'daemon'}", str(tmp_path / "lane")
    daemon = SlowDaemon(path)
    server = grpc.server(ThreadPoolExecutor(1))
    interpreter_pb2_grpc.add_InterpreterServiceServicer_to_server(daemon, server)
    server.add_insecure_port(address)
    server.start()
    with (
        closing(lane_socket.listen(path)) as listener,
        subprocess.Popen(
            [sys.executable, "-c", FAR, address, f"unix:{tmp_path / 'far'}"],
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert daemon.heard.get(timeout=LONGEST_WAIT).HasField("hello")
            assert daemon.heard.get(timeout=LONGEST_WAIT).HasField("heartbeat")
            # Had it waited for that, it would not wait any more.
            peer = Peer(listener)
            peer.accept()
            assert peer.connection is not None
            with peer.connection:
                instruction = pb.DirectCalls(epoch=1)
                daemon.says.put(pb.DaemonMessage(instruction_id=7, direct_calls=instruction))
                while not (said := daemon.heard.get(timeout=LONGEST_WAIT)).HasField("done"):
                    assert said.HasField("heartbeat")
                assert said.instruction_id == 7
                daemon.says.put(pb.DaemonMessage(goodbye=pb.Goodbye(reason="that will do")))
                assert peer.connection.recv(1) == b""  # it was open until then
            assert "that will do" in process.communicate(timeout=LONGEST_WAIT)[1]
        finally:
            process.kill()
            daemon.says.put(pb.DaemonMessage(goodbye=pb.Goodbye()))  # to whomever it is
            server.stop(None).wait(LONGEST_WAIT)
