"""The log of operators: in which epoch each has changed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from opdispatch import Dispatcher, OperatorName
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.schema.parser import parse_schema
from opdispatch_server.daemon.servicers import operator_log
from opdispatch_server.daemon.servicers.operator_log import OperatorLog
from opdispatch_server.daemon.servicers.registry_view import OperatorRow
from opdispatch_wire.v1 import registry_pb2 as pb


class Operators:
    """The operators of a dispatcher, as a log reads them."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self.log = OperatorLog(self.read)

    def read(self, known: Mapping[str, OperatorRow]) -> dict[str, OperatorRow]:
        rows = {}
        for name in self.dispatcher.operators():
            op = self.dispatcher.find_op(name)
            assert op is not None
            row = known.get(str(name))
            if row is None or row.state is not op.published_state:
                keys = [str(kernel.key) for kernel in op.kernels()]
                summary = pb.OperatorSummary(name=str(name), keys=keys)
                row = OperatorRow(summary, op.published_state)
            rows[str(name)] = row
        return rows

    def changed(self, epoch: int | None) -> tuple[bool, list[str], list[str]]:
        found = self.log.since(epoch)
        return found.is_whole, [each.name for each in found.changed], list(found.gone)


def test_only_what_has_changed_since_an_epoch_is_returned():
    operators = Operators()
    kept = operators.dispatcher.register_def(parse_schema("a::f(int x) -> int"))
    operators.log.update(3)
    assert operators.changed(None) == (True, ["a::f"], [])
    assert operators.changed(3) == (False, [], [])
    other = operators.dispatcher.register_def(parse_schema("a::g(int x) -> int"))
    operators.log.update(5)
    kernel = operators.dispatcher.register_impl(
        OperatorName.parse("a::f"), "CPU", KernelFunction.from_unboxed(lambda x: x)
    )
    operators.log.update(6)
    assert operators.changed(3) == (False, ["a::f", "a::g"], [])
    assert operators.changed(5) == (False, ["a::f"], [])
    assert operators.log.keys == {"CPU"}
    other.close()
    operators.log.update(9)
    assert operators.changed(3) == (False, ["a::f"], ["a::g"])
    assert operators.changed(9) == (False, [], [])
    kernel.close()
    kept.close()


def test_an_epoch_that_is_not_known_brings_everything():
    operators = Operators()
    with operators.dispatcher.register_def(parse_schema("a::f(int x) -> int")):
        operators.log.update(3)
        for epoch in (2, 4, -1, 10**12):
            assert operators.changed(epoch) == (True, ["a::f"], [])


def test_of_operators_that_have_gone_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operator_log, "GONE_KEPT", 2)
    operators = Operators()
    operators.log.update(0)
    for epoch in range(1, 8, 2):
        with operators.dispatcher.register_def(parse_schema(f"a::f{epoch}(int x) -> int")):
            operators.log.update(epoch)
        operators.log.update(epoch + 1)
    assert operators.changed(0)[0], "what went then is forgotten"
    assert operators.changed(4) == (False, [], ["a::f5", "a::f7"])
