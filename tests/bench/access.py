"""The cost of tokens and TLS, and of strangers and rotations to others: ``make bench``.

A stranger's floods come from a process of its own, on a core and from an address of its own, since
a stranger has a machine of his own: connections that are begun and given up at once, that are
opened and closed, those that are closed after the handshake, and those that bring one request with
a wrong token and are opened again when that is answered.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from opdispatch_server.access.authentication import Authentication
from opdispatch_server.access.token_file import TokenFile
from opdispatch_wire import secured_channel
from opdispatch_wire.errors import DaemonUnavailableError, UnauthenticatedError
from tests.bench.processor_time import processor_seconds
from tests.service.certificates import Certificates
from tests.service.running_daemon import RunningDaemon
from tests.service.tokens import Tokens, id_of

X = np.zeros(2)
LIBRARY = """\
from opdispatch import Library

lib = Library("bench", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: 1, "CPU")
"""
ALTERNATIONS = 4000
ROTATIONS = 100
CALLS_PER_SECOND = 1000
REVOCATIONS = 10
FLOOD_SECONDS = 3.0
FLOODERS = 64
FLOODS = ("given up at once", "opened and closed", "of a handshake alone", "with a wrong token")
STRANGERS_ADDRESS = "127.0.0.2"
NEW_CLIENTS = 3
_CALL_STREAM = b"/opdispatch.v1.ExecutionService/Call"


class Bench:
    """A daemon with TLS, and tokens if it is to ask for them."""

    def __init__(self, folder: Path, *options: str, has_tokens: bool = True) -> None:
        folder.mkdir()
        self.certificates = Certificates(folder / "certs")
        self.tokens = Tokens(folder)
        self.token = self.tokens.add("admin", name="bench")
        given = ("--tokens", str(self.tokens.path)) if has_tokens else ()
        listen = ["127.0.0.1:0", f"unix://{folder}/daemon.sock"]
        self.daemon = RunningDaemon(
            folder, *self.certificates.serve, *given, *options, workers=1, listen=listen
        )
        self.daemon.wait_until_ready()
        (folder / "bench.py").write_text(LIBRARY)
        with oc.connect(self.daemon.addresses[1]) as owner:
            owner.load(folder / "bench.py")

    def connect(self, token: str | None = None, **options: Any) -> oc.Session:
        """Return a session over a gRPC stream."""
        settings = {"tls_ca": self.certificates.ca, "lane": "stream", **options}
        return oc.connect(self.daemon.address, token=token, **settings)

    def add(self, role: str) -> str:
        """Return a new token, once the daemon knows it."""
        token = self.tokens.add(role)
        _wait_until(lambda: id_of(token) in self.daemon.log())
        return token


@contextlib.contextmanager
def benches(*settings: bool) -> Iterator[list[Bench]]:
    """Have daemons, with tokens or without."""
    made: list[Bench] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for n, has_tokens in enumerate(settings):
                made.append(Bench(Path(folder) / str(n), has_tokens=has_tokens))
            yield made
        finally:
            for each in made:
                each.daemon.clean_up()


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def _warmed_up(session: oc.Session) -> Callable[[], object]:
    """Return a call that goes past the daemon by now, or through it for good."""
    get = session.ops.bench.get

    def call() -> object:
        return get(X)

    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        call()
    return call


def token_cost() -> Iterator[tuple[str, str]]:
    """Compare calls over TLS with a token and without one, directly and through the daemon."""
    with benches(False, True) as (without, asking), contextlib.ExitStack() as stack:
        for name, direct in (("direct", True), ("through the daemon", False)):
            plain = _warmed_up(stack.enter_context(without.connect(direct=direct)))
            shown = _warmed_up(stack.enter_context(asking.connect(asking.token, direct=direct)))
            took = _alternated({"without": plain, "with": shown})
            yield (
                f"a call over TLS, {name}: with a token / without",
                f"{took['with'] / took['without']:.3f} ({1e6 * took['without']:.0f} us)",
            )


def _alternated(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each, call by call in turns: what is slow now is so for all."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ALTERNATIONS):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            took[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in took.items()}


def role_check() -> Iterator[tuple[str, str]]:
    """Count the functions that a request's check enters, beside the hash of its token."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = Tokens(Path(folder))
        token = tokens.add("call")
        authentication = Authentication(TokenFile(tokens.path))
        method = "/opdispatch.v1.ExecutionService/Call"
        identity = authentication.identify(method, "ipv4:x", f"Bearer {token}")
        entered: list[str] = []

        def note(frame: Any, event: str, _: object) -> None:
            if event == "call":
                entered.append(frame.f_code.co_name)

        sys.setprofile(note)
        authentication.identify(method, "ipv4:x", f"Bearer {token}")
        of_all, entered = len(entered), []
        identity.check_may_call(method, "call")
        sys.setprofile(None)
        yield (
            "functions entered to identify a request, and to check its role",
            (f"{of_all}, {len(entered)} ({', '.join(entered)}: one look-up)"),
        )


def rotations() -> Iterator[tuple[str, str]]:
    """Replace certificates and tokens again and again while calls go on."""
    secured_channel.FILE_CHECK_SECONDS = 0.01
    with benches(True) as (bench,):
        file = bench.daemon.folder / "token"
        file.write_text(bench.add("call"))
        done, calls, failures = threading.Event(), [0, 0, 0], list[BaseException]()

        def call(which: int, options: dict[str, Any]) -> None:
            try:
                with bench.connect(token_file=file, **options) as session:
                    due = time.monotonic()
                    while not done.is_set():
                        futures = [session.submit("bench::get", X) for _ in range(16)]
                        for each in futures:
                            each.result(60)
                        calls[which] += len(futures)
                        due += len(kinds) * len(futures) / CALLS_PER_SECOND
                        time.sleep(max(due - time.monotonic(), 0.0))
            except BaseException as error:
                failures.append(error)

        kinds: list[dict[str, Any]] = [{}, {"direct": False}, {"lane": "grpc"}]
        threads = [threading.Thread(target=call, args=each) for each in enumerate(kinds)]
        for each in threads:
            each.start()
        began = time.perf_counter()
        for n in range(ROTATIONS):
            bench.certificates.issue_server()
            if n % 10 == 0:
                file.write_text(bench.add("call"))
            with bench.connect(token_file=file, lane="grpc") as session:
                session.libraries()
        seconds = time.perf_counter() - began
        done.set()
        for each in threads:
            each.join(60)
        yield (
            f"failed calls in {ROTATIONS} rotations of certificates and tokens",
            f"{len(failures)} of {sum(calls)} at {sum(calls) / seconds:.0f}/s {failures[:1]}",
        )


def revocations() -> Iterator[tuple[str, str]]:
    """Time how long a revoked token is of use, on open streams past the daemon and to it."""
    with benches(True) as (bench,):
        for name, direct in (("past the daemon", True), ("through it", False)):
            took = []
            for _ in range(REVOCATIONS):
                token = bench.add("call")
                with bench.connect(token, direct=direct) as session:
                    call = _warmed_up(session)
                    bench.tokens.revoke(token)
                    began = time.perf_counter()
                    with contextlib.suppress(UnauthenticatedError):
                        while True:
                            call()
                    took.append(time.perf_counter() - began)
            yield (
                f"a revoked token ends calls {name}: the longest of {REVOCATIONS}",
                f"{max(took):.2f} s (median {statistics.median(took):.2f})",
            )


def flood() -> Iterator[tuple[str, str]]:
    """Compare a good client's rate beside floods of refused connections, and without."""
    with benches(True) as (bench,), contextlib.ExitStack() as stack:
        strangers_core = stack.enter_context(_core_apart(bench.daemon))
        port = int(bench.daemon.address.rpartition(":")[2])
        for name, direct in (("direct", True), ("through the daemon", False)):
            call = _warmed_up(stack.enter_context(bench.connect(bench.token, direct=direct)))
            for kind in FLOODS:
                ratios, refused, worked, joined = [], [], [], []
                for _ in range(3):
                    alone = _rate(call)
                    with flooding(port, bench.certificates.ca, kind, strangers_core) as count:
                        _rate(call)  # until its refusals have a pace
                        before, began = count.value, time.monotonic()
                        used = processor_seconds([bench.daemon.process.pid])
                        ratios.append(_rate(call) / alone)
                        used = processor_seconds([bench.daemon.process.pid]) - used
                        seconds = time.monotonic() - began
                        refused.append((count.value - before) / seconds)
                        joined += [_join(bench) for _ in range(NEW_CLIENTS)]
                        worked.append(used / seconds)
                yield (
                    f"a good client's rate of calls, {name}, beside {FLOODERS} connections {kind}",
                    f"{statistics.median(ratios):.2f} of that without "
                    f"({statistics.median(refused):.0f} connections/s, "
                    f"the daemon at {100 * statistics.median(worked):.0f} % of a core; "
                    f"new clients get in after {statistics.median(joined):.2f} s, "
                    f"at most {max(joined):.2f})",
                )


def _join(bench: Bench) -> float:
    """Return how many seconds a new client waits for its first result."""
    began = time.perf_counter()
    while True:
        try:
            with bench.connect(bench.token) as session:
                session.ops.bench.get(X)
        except DaemonUnavailableError:
            continue
        return time.perf_counter() - began


@contextlib.contextmanager
def _core_apart(daemon: RunningDaemon) -> Iterator[int | None]:
    """Leave one core to strangers: keep the daemon, its interpreters and this process off it."""
    cores = os.sched_getaffinity(0)
    strangers = max(cores) if len(cores) > 1 else None
    ours = cores - {strangers}
    processes = [psutil.Process(), psutil.Process(daemon.process.pid)]
    for process in (*processes, *processes[1].children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, ours)
    try:
        yield strangers
    finally:
        for thread in processes[0].threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


def _rate(call: Callable[[], object]) -> float:
    began, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < FLOOD_SECONDS:
        call()
        count += 1
    return count / seconds


@contextlib.contextmanager
def flooding(port: int, ca: str, kind: str, core: int | None) -> Iterator[Any]:
    """Have another process open connections of a kind; the count goes on in the block."""
    context = multiprocessing.get_context("spawn")
    count, stop, is_ready = context.Value("L", 0), context.Event(), context.Event()
    flooder = context.Process(
        target=_flood, args=(port, ca, kind, core, count, stop, is_ready), daemon=True
    )
    flooder.start()
    is_ready.wait(60)
    try:
        yield count
    finally:
        stop.set()
        flooder.join(60)


def _flood(
    port: int,
    ca: str,
    kind: str,
    core: int | None,
    count: Any,
    stop: ProcessEvent,
    is_ready: ProcessEvent,
) -> None:
    """Run in the other process: each thread opens one connection after the other."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    tls = ssl.create_default_context(cafile=ca)
    tls.set_alpn_protocols(["h2"])
    request = http2_request(_CALL_STREAM, b"Bearer opd1_0000000000000000_" + b"x" * 43)

    def open_one() -> bool:
        if kind == "given up at once":
            with socket.socket() as plain:
                plain.bind((STRANGERS_ADDRESS, 0))
                plain.setblocking(False)
                plain.connect_ex(("127.0.0.1", port))
                return True
        source = (STRANGERS_ADDRESS, 0)
        with socket.create_connection(("127.0.0.1", port), 10, source) as plain:
            if kind == "opened and closed":
                return True
            with tls.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                if kind == "of a handshake alone":
                    return True
                connection.sendall(request)
                return _is_answered(connection)

    def open_all() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                done = open_one()
                with count.get_lock():
                    count.value += done

    threads = [threading.Thread(target=open_all, daemon=True) for _ in range(FLOODERS)]
    for each in threads:
        each.start()
    is_ready.set()
    for each in threads:
        each.join()


def _is_answered(connection: ssl.SSLSocket) -> bool:
    """Read until the answer to the one request ends; False if the connection does."""
    data = b""
    while more := connection.recv(65536):
        data += more
        while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
            kind, flags, data = data[3], data[4], data[9 + size :]
            if kind in (0, 1) and flags & 1:
                return True
    return False


def http2_request(path: bytes, authorization: bytes) -> bytes:
    """Return the bytes of one gRPC request without content, with which a connection begins."""

    def literal(name: bytes, value: bytes) -> bytes:  # RFC 7541, 6.2.2, with a new name
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = b"".join(
        literal(*each)
        for each in (
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":path", path),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"authorization", authorization),
        )
    )

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
        return head + stream.to_bytes(4, "big") + payload

    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    message = frame(0, 1, 1, b"\0\0\0\0\0")
    return preface + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + message


PARTS = {
    "token_cost": token_cost,
    "role_check": role_check,
    "rotations": rotations,
    "revocations": revocations,
    "flood": flood,
}


def main() -> None:
    """Print the table, of the parts that are named, or of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    table = Table("", "")
    for part in parser.parse_args().parts or PARTS:
        for row in PARTS[part]():
            table.add_row(*row)
            print(*row, sep=": ", file=sys.stderr, flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
