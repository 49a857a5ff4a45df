"""Planned calls that the daemon passes on by their constant bytes, as other messages than came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.calls import call_request
from opdispatch_wire.planned_replies import reply_with_id
from opdispatch_wire.planned_requests import (
    RelayForm,
    RequestForm,
    RequestLayout,
    constant_bytes_of,
)
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.values import fill_value
from opdispatch_wire.variable_parts import filled
from tests.unit.test_wire_planned_calls import NUMBERS, TIMEOUTS, arrays

RUN = 2**127 + 5


def relay(args: list[Any], timeout: float | None, number: int) -> tuple[RelayForm, bytes]:
    """The form in which a request goes on, and the request."""
    request = call_request("add", args, {})
    form = RequestForm.of(request, args)
    assert form is not None
    payload = form.write(args, timeout, number)
    layout = RequestLayout.of(payload, execution_pb2.CallRequest.FromString(payload))
    assert layout is not None
    head = execution_pb2.CallRequest(operator="test::add")
    head.kernel.load_id, head.path.lane, head.path.limit = 3, 3, 2
    return RelayForm(layout, head), payload


@given(st.lists(arrays(), max_size=3), TIMEOUTS, NUMBERS, NUMBERS)
def test_a_request_goes_on_with_its_arguments_and_another_head(
    args: list[np.ndarray[Any, Any]], timeout: float | None, number: int, next_number: int
):
    form, payload = relay(args, timeout, number)
    sent = form.write(payload, RUN, timeout, next_number)
    read = execution_pb2.CallRequest.FromString(sent)
    expected = call_request("test::add", args, {})
    expected.kernel.load_id, expected.path.lane, expected.path.limit = 3, 3, 2
    expected.path.run, expected.id = RUN.to_bytes(16), next_number
    expected.constant_bytes = read.constant_bytes
    if timeout is not None:
        expected.timeout = timeout
    assert read == expected
    layout = RequestLayout.of(sent, read)
    assert layout is not None
    assert layout.has_run
    again = form.write(payload, RUN + 1, None, 9)
    assert constant_bytes_of(again) == layout.constant
    received = layout.read(again)
    assert received is not None
    got, seconds, leaves = received
    assert (got, seconds, leaves.pop()) == (9, None, RUN + 1)
    assert [filled(each, leaves).tolist() for each in layout.args] == [a.tolist() for a in args]


@pytest.mark.parametrize("name", ["kernel", "operator", "route_epoch", "retry", "chunks_reply"])
def test_relayed_request_has_no_layout_with_hidden_fields(name: str):
    _, payload = relay([np.ones(2)], None, 1)
    other = execution_pb2.CallRequest(operator="other", route_epoch=1, retry=True)
    other.kernel.load_id, other.chunks_reply = 9, True
    said = execution_pb2.CallRequest(**{name: getattr(other, name)})
    hidden = payload[:-2] + said.SerializeToString() + payload[-2:]
    assert RequestLayout.of(hidden, execution_pb2.CallRequest.FromString(hidden)) is None


def test_a_reply_goes_on_under_another_id():
    reply = execution_pb2.CallReply(id=300, interpreter="worker-1")
    fill_value(reply.returns.add(), 2.5, at="$")
    payload = reply.SerializeToString()
    reply.id = 5
    assert execution_pb2.CallReply.FromString(reply_with_id(payload[3:], 5)) == reply
