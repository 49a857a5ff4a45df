"""Resumable uploads of library files of any size, in chunks.

The daemon first reports how many bytes of the file it has. An upload continues from there after its
connection broke, and also if another process began it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from opdispatch_client.read_timeout import read_within
from opdispatch_client.rpcs import Load
from opdispatch_wire.client_identity import CLIENT_KEY, describe_self
from opdispatch_wire.errors import DaemonUnavailableError, WireError
from opdispatch_wire.library_content import LibraryContent, upload_chunk_bytes
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import registry_pb2 as pb

OnUpload = Callable[[int, int], None]
"""Called with the number of bytes that the daemon has received, and the file's size."""

METHOD = "/opdispatch.v1.RegistryService/UploadLibrary"
TRIES = 8
"""Number of retries after a broken connection before the upload fails."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class LibraryUpload:
    """One upload over a blocking channel. Another thread may call ``cancel``."""

    def __init__(
        self,
        channel: grpc.Channel,
        load: Load,
        *,
        address: str,
        timeout: float | None,
        max_message_bytes: int,
        on_upload: OnUpload | None,
    ) -> None:
        assert load.content is not None, "there is something to upload"
        self._method = channel.stream_stream(
            METHOD,
            request_serializer=pb.UploadLibraryRequest.SerializeToString,
            response_deserializer=pb.UploadLibraryReply.FromString,
        )
        self._content = load.content
        request = load.rpc.request
        assert isinstance(request, pb.LoadLibraryRequest), "it comes from rpcs.load"
        self._file = pb.UploadedFile(
            filename=request.filename, sha256=self._content.sha256, size=self._content.size
        )
        self._what = load.rpc.what
        self._address = address
        self._timeout = timeout
        self._chunk_bytes = upload_chunk_bytes(max_message_bytes)
        self._on_upload = on_upload or (lambda received, total: None)
        self._call: Any = None
        self._is_cancelled = threading.Event()

    def run(self) -> None:
        """Upload the file, unless the daemon has it.

        Raises the daemon's error, LibraryLoadError if the file cannot be read, and
        DaemonUnavailableError when the connection is lost for good.
        """
        tries, pause = 0, _FIRST_PAUSE
        while True:
            attempt = _Attempt(self._content, self._file, self._chunk_bytes)
            try:
                self._send(attempt)
                return
            except DaemonUnavailableError:
                if self._is_cancelled.is_set() or (not attempt.received and not tries):
                    raise  # the first connection failed: do not retry
                tries, pause = (1, _FIRST_PAUSE) if attempt.received else (tries + 1, 2 * pause)
                if tries > TRIES:
                    raise
            time.sleep(min(pause, _LONGEST_PAUSE))

    def cancel(self) -> None:
        """Cancel the upload."""
        self._is_cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def _send(self, attempt: _Attempt) -> None:
        metadata = ((CLIENT_KEY, describe_self()),)
        try:
            self._call = self._method(attempt.requests(), metadata=metadata)
            for reply in read_within(self._call, self._what, self._timeout):
                if reply.waiting:
                    continue
                self._on_upload(reply.received, self._file.size)
                if reply.stored:
                    return
                attempt.begin(reply.received)
            raise WireError(
                f"$: the daemon has ended the upload of {self._what} before it was complete"
            )
        except grpc.RpcError as error:
            if attempt.failure is not None:
                raise attempt.failure from None
            raise error_from_rpc(error, address=self._address) from None
        finally:
            attempt.stop()
            if self._call is not None:
                self._call.cancel()


class _Attempt:
    """The messages sent over one connection; gRPC reads them in a thread of its own."""

    def __init__(self, content: LibraryContent, file: pb.UploadedFile, chunk_bytes: int) -> None:
        self._content = content
        self._file = file
        self._chunk_bytes = chunk_bytes
        self._begun = threading.Event()
        self._offset = 0
        self._is_stopped = False
        self.received = 0
        """The number of bytes that the daemon has confirmed."""
        self.failure: Exception | None = None

    def begin(self, received: int) -> None:
        """Start sending after the first ``received`` bytes, unless it has started."""
        if not self._begun.is_set():
            self._offset = received
            self._begun.set()
        self.received = max(received, 1)

    def stop(self) -> None:
        """Stop sending."""
        self._is_stopped = True
        self._begun.set()

    def requests(self) -> Iterator[pb.UploadLibraryRequest]:
        """Yield the messages to send; the first identifies the file."""
        yield pb.UploadLibraryRequest(file=self._file)
        self._begun.wait()
        try:
            for chunk in self._content.chunks(self._offset):
                for start in range(0, len(chunk), self._chunk_bytes):
                    if self._is_stopped:
                        return
                    part = chunk[start : start + self._chunk_bytes]
                    yield pb.UploadLibraryRequest(chunk=part)
        except Exception as error:
            self.failure = error
            raise
