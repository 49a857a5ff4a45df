"""A call enters few Python functions: a figure that no other load of the machine moves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import opdispatch_client as oc
from tests.bench import streams
from tests.bench.functions_entered import KINDS, load, measure, measure_awaited

WORKERS = 1
# A few more than the usual ones: a thread that sees that it has waited for long does a little more.
MOST_IN_CLIENT = 29
MOST_IN_INTERPRETER = 41
# Some 33 of them are those of asyncio's event loop. The general way enters 201.
MOST_AWAITED = 85
MOST_AWAITED_LARGE = 130
# A call of two arrays in the general way enters 167 and 187.
MOST_OF_KIND = {
    "two arrays": (23, 32),
    # One has its tensors in shared memory, and releases the result of the last one.
    "two arrays of 1 MB": (55, 70),
    "Tensors": (29, 40),
    # At most 1.3 times what two arrays enter.
    "remote tensors": (27, 37),
    # One makes a remote tensor, and lets go of the last one.
    "remote tensors, result kept": (32, 48),
    "array, int for a float": (26, 50),
    "list of arrays, text": (31, 41),
    "results by name": (30, 42),
    "list of results": (29, 42),
    "list of ints": (36, 47),
}

# By a call over a stream: client, daemon, interpreter; functions of gRPC and asyncio among them.
MOST_OVER_STREAMS = {"direct": (85, 9, 130), "through the daemon": (92, 196, 42)}
# By one that a kernel makes, of an operator in another interpreter: in the daemon.
MOST_FOR_A_KERNEL = 200


def test_a_direct_call_of_each_kind_enters_few_functions_on_either_side(
    session: oc.Session, tmp_path: Path
):
    load(session, tmp_path)
    for kind in KINDS:
        client, interpreter = measure(session, kind)
        most = MOST_OF_KIND.get(kind, (MOST_IN_CLIENT, MOST_IN_INTERPRETER))
        assert client.total() <= most[0], (kind, client.most_common())
        assert interpreter.total() <= most[1], (kind, interpreter.most_common())


def test_an_awaited_call_enters_few_functions(session: oc.Session, tmp_path: Path):
    load(session, tmp_path)
    for kind, most in (("two arrays", MOST_AWAITED), ("two arrays of 1 MB", MOST_AWAITED_LARGE)):
        entered = asyncio.run(measure_awaited(session.address, kind))
        assert entered.total() <= most, entered.most_common()


def test_a_call_over_a_stream_enters_few_functions_in_every_process(tmp_path: Path):
    with streams.counting_daemon(tmp_path) as daemon:
        found = streams.count_ways(daemon)
    for way, most in MOST_OVER_STREAMS.items():
        for (process, entered), limit in zip(found[way].items(), most, strict=True):
            assert entered.total() <= limit * streams.COUNTED, (way, process, entered.most_common())


OUTER = """\
from opdispatch import Library, ops

lib = Library("outer", "DEF")
lib.define("add(Tensor x, int n) -> Tensor")


def add(x, n):
    for _ in range(n):
        x = ops.bench.add(x, x)
    return x


lib.impl("add", add, "CPU")
"""


def test_a_call_that_a_kernel_makes_enters_few_functions_in_the_daemon(tmp_path: Path):
    (tmp_path / "outer.py").write_text(OUTER)
    with streams.counting_daemon(tmp_path, workers=2) as daemon, oc.connect(daemon.address) as s:
        s.load(tmp_path / "outer.py", interpreters=1)
        s.call("outer::add", streams.X, 10)
        daemon.switch()
        s.call("outer::add", streams.X, streams.COUNTED)
        entered = daemon.switch()
    # Without any, all would have run in one interpreter.
    most = MOST_FOR_A_KERNEL * streams.COUNTED
    assert streams.COUNTED < entered.total() <= most, entered.most_common()
