"""The log of slow calls: its threshold, and what a record says of a call."""

import math

from opdispatch_server.call_context import RunningCall
from opdispatch_server.worker.execution.slow_call_log import SlowCallLog

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_threshold_is_in_seconds_and_zero_logs_none():
    log = SlowCallLog(lambda: "here")
    assert log.threshold_ns == math.inf
    log.log_calls_slower_than(0.5)
    assert log.threshold_ns == 5e8
    log.log_calls_slower_than(0.0)
    assert log.threshold_ns == math.inf


def test_record_says_which_call_was_slow_and_where_its_time_went(caplog):
    call = RunningCall(traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
    SlowCallLog(lambda: "here").log("a::b", None, 7, 250_000_000, 10**9, call)
    [record] = caplog.records
    assert (record.operator, record.interpreter, record.call) == ("a::b", "here", 7)
    assert (record.queue_seconds, record.kernel_seconds) == (0.25, 1.0)
    assert record.trace == TRACE
