"""Tensors whose parts fit together no more: an error for the code that broke them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import opdispatch_client as oc
from opdispatch import Tensor, profile
from tests.service.layouts import X
from tests.service.remote import nothing_is_kept
from tests.service.running_daemon import RunningDaemon

BREAK = """\
import numpy as np
import scipy.sparse
from opdispatch import NestedArray, QuantizedArray

def broken(x, how):
    by_place, by_rows = scipy.sparse.coo_array(x), scipy.sparse.csr_array(x)
    nested = NestedArray(np.ones((3, 3)), np.array([0, 2, 3]))
    quantized = QuantizedArray(np.ones(2, np.uint8), 1.0, 0)
    match how:
        case "lengths":
            by_place.data = by_place.data[:2]
            return by_place
        case "coordinates":
            by_place.coords = (by_place.coords[0], by_place.coords[1][:2])
            return by_place
        case "extent":
            by_place._shape = (2, 2**70)
            return by_place
        case "list":
            by_rows.indices = [0, 1, 2]
            return by_rows
        case "rows":
            by_rows.indptr = by_rows.indptr[:2]
            return by_rows
        case "offsets":
            nested.values.resize((9,), refcheck=False)
            return nested
        case "scale":
            object.__setattr__(quantized, "scale", np.ones(2))
            return quantized
"""
LIBRARY = f"""\
{BREAK}
from opdispatch import Library
lib = Library("frail", "DEF")
lib.define("broken(Tensor x, str how) -> Tensor")
lib.impl("broken", broken, "CPU")
lib.define("all_broken(Tensor x, str how) -> Tensor[]")
lib.impl("all_broken", lambda x, how: [x, broken(x, how)], "CPU")
lib.define("take(Tensor x, Tensor[] more) -> ()")
lib.impl("take", lambda x, more: None, "CompositeImplicitAutograd")
"""
BROKEN = {
    "lengths": r"is not a valid sparse_coo tensor: indices has shape \[2, 3\]; expected \[2, 2\]",
    "coordinates": "is not a valid sparse_coo tensor: one array of all indices cannot be made",
    "extent": r"is not a valid sparse_coo tensor: shape is .*; no extent is more than 2\*\*63 - 1",
    "list": "is not a valid sparse_csr tensor: col_indices is of type list; expected a dense array",
    "rows": r"is not a valid sparse_csr tensor: crow_indices has shape \[2\]; expected \[3\]",
    "offsets": "is not a valid nested tensor: offsets ends with 3; expected 9",
    "scale": r"is not a valid quantized tensor: scale is array\(\[1., 1.\]\)",
}


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("frail")
    daemon = RunningDaemon(folder, workers=1)
    try:
        daemon.wait_until_ready()
        (folder / "frail.py").write_text(LIBRARY)
        with daemon.connect() as session:
            session.load(folder / "frail.py")
        yield daemon
    finally:
        daemon.clean_up()


@pytest.mark.parametrize("how", BROKEN)
def test_layout_broken_by_a_kernel_raises_return_error(frail: RunningDaemon, how: str):
    error = rf"frail::broken produced a value that cannot be sent: \$\.returns\[0\] {BROKEN[how]}"
    with frail.connect() as session:
        for remote in (False, True):
            for _ in range(2):  # through the daemon, and directly
                with pytest.raises(oc.ReturnError, match=error):
                    session.call("frail::broken", X, how, remote=remote)
                in_a_list = rf"frail::all_broken produced .*\$\.returns\[0\]\[1\] {BROKEN[how]}"
                with pytest.raises(oc.ReturnError, match=in_a_list):
                    session.call("frail::all_broken", X, how, remote=remote)
            with pytest.raises(oc.ReturnError, match=BROKEN[how]), session.program() as p:
                p.output(p.ops.frail.broken(X, how), remote=remote)
        with (
            profile(record_shapes=True, profile_memory=True),
            pytest.raises(oc.ReturnError, match=error),
        ):
            session.ops.frail.broken(X, how)
        assert nothing_is_kept(session)


@pytest.mark.parametrize("how", BROKEN)
def test_layout_broken_by_the_caller_raises_wire_error(frail: RunningDaemon, how: str):
    namespace: dict[str, Any] = {}
    exec(BREAK, namespace)
    value = namespace["broken"](X, how)
    with frail.connect() as session:
        for broken in (value, Tensor(value)):
            with pytest.raises(oc.WireError, match=rf"^\$\.args\[0\] {BROKEN[how]}"):
                session.ops.frail.take(broken, [])
            with pytest.raises(oc.WireError, match=rf"^\$\.args\[1\]\[0\] {BROKEN[how]}"):
                session.ops.frail.take(X, [broken])
            with pytest.raises(oc.WireError, match=BROKEN[how]):
                session.put(broken)
