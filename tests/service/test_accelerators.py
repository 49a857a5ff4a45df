"""Kernels on a device with memory of its own, in interpreters that have a backend for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import (
    DeviceError,
    DeviceTransfers,
    Tensor,
    nested_tensor,
    quantize_per_tensor,
    register_backend,
)
from opdispatch import array_api as xp
from tests import simulated_accelerator
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.simulated_accelerator import Accelerator, AcceleratorArray
from tests.waits import LONGEST_WAIT

SHARED_WORKERS = 1
X = np.arange(6.0).reshape(2, 3)
LIBRARY = (
    Path(simulated_accelerator.__file__).read_text()
    + """

from opdispatch import Library, register_backend

accelerator = Accelerator()
register_backend(accelerator)

lib = Library("acc", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
lib.define("transfers(Tensor x) -> (int, int)")
lib.define("limit(Tensor x, int room) -> ()")
lib.impl("add", lambda x, y: x + y, "PrivateUse1")
lib.impl("add_", lambda x, y: x.__iadd__(y), "PrivateUse1")
lib.impl("add", lambda x, y: x + y + 100, "CPU")
lib.impl("transfers", lambda x: (accelerator.uploads, accelerator.downloads), "CPU")
lib.impl("limit", lambda x, room: setattr(accelerator, "room", room), "CPU")
"""
)
KERNELS = """\
from opdispatch import Library

lib = Library("acc", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.impl("add", lambda x, y: x + y, "PrivateUse1")
"""

EVERYWHERE = """\
from opdispatch import Library

lib = Library("everywhere", "DEF")
lib.define("kind(Tensor x) -> str")
lib.define("first(Tensor[] xs) -> Tensor")
lib.impl("kind", lambda x: type(x).__name__, "CompositeExplicitAutograd")
lib.impl("first", lambda xs: xs[0], "CompositeExplicitAutograd")
"""


def test_a_call_goes_to_the_kernel_for_where_its_tensors_are(
    shared: oc.Session, write_library: WriteLibrary, accelerator: Accelerator
):
    shared.load(write_library("acc", LIBRARY))
    x = accelerator.from_host(X, "privateuseone:1")
    result = shared.ops.acc.add(x, x)
    assert isinstance(result, AcceleratorArray)
    assert accelerator.device_of(result) == "privateuseone:1"
    np.testing.assert_array_equal(accelerator.to_host(result), X + X)
    np.testing.assert_array_equal(shared.ops.acc.add(X, X), X + X + 100)


def test_kernel_writes_to_device_tensor_in_place(
    shared: oc.Session, write_library: WriteLibrary, accelerator: Accelerator
):
    shared.load(write_library("acc", LIBRARY))
    x = accelerator.from_host(X, "privateuseone:0")
    assert shared.ops.acc.add_(x, x) is x
    np.testing.assert_array_equal(accelerator.to_host(x), X + X)


def test_values_that_stay_on_a_device_are_not_transferred(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    with lent_daemon.connect() as session:
        session.load(write_library("acc", LIBRARY))
        x = session.put(accelerator.from_host(X, "privateuseone:1"))
        assert x.device == "privateuseone:1"
        before = session.ops.acc.transfers(X)
        y = session.call("acc::add", x, x, remote=True)
        z = session.call("acc::add", y, y, remote=True)
        session.call("acc::add_", z, x)
        assert session.ops.acc.transfers(X) == before
        np.testing.assert_array_equal(z.numpy(), 5 * X)


def test_values_go_to_an_interpreter_that_has_a_backend_for_their_device(
    start_daemon: StartDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    """Also if others hold more libraries, or serve as many steps."""
    more = (
        "from opdispatch import Library\n"
        "lib = Library('acc', 'FRAGMENT')\n"
        "lib.impl('add_', lambda x, y: x.__iadd__(y), 'CPU')\n"
        "lib.impl('add', lambda x, y: x + y, 'AutogradCPU')\n"
    )
    x = accelerator.from_host(X, "privateuseone:1")
    with start_daemon(workers=2).connect() as session:
        session.load(write_library("acc", LIBRARY), interpreter="worker-1")
        session.load(write_library("more", more), interpreter="worker-2")
        other = "from opdispatch import Library\nlib = Library('other', 'DEF')\n"
        session.load(write_library("other", other), interpreter="worker-2")
        for _ in range(4):  # of equals, the one that has rested longest is taken
            kept = session.put(x)
            assert (kept.device, kept.interpreter) == ("privateuseone:1", "worker-1")
            with session.program() as p:
                p.output(p.ops.acc.add_(p.ops.acc.add(x, x), x))
            np.testing.assert_array_equal(accelerator.to_host(p.result), 3 * X)
        assert session.put(X).interpreter == "worker-2"


def test_tensors_of_other_layouts_are_kept_on_a_device(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    quantized = quantize_per_tensor(X, 0.5, 1, "qint8").to("privateuseone:1")
    nested = nested_tensor([X, X[:1]]).to("privateuseone:0")
    with lent_daemon.connect() as session:
        session.load(write_library("acc", LIBRARY))
        kept = session.put(quantized)
        assert (kept.device, kept.nbytes) == ("privateuseone:1", 6)
        np.testing.assert_array_equal(
            Tensor(kept.numpy()).to("cpu").int_repr(), quantized.to("cpu").int_repr()
        )
        kept = session.put(nested)
        assert (kept.device, kept.nbytes) == ("privateuseone:0", 9 * 8 + 3 * 8)
        np.testing.assert_array_equal(Tensor(kept.numpy()).to("cpu").unbind()[1], X[:1])
    with pytest.raises(DeviceError, match="move the tensor to the host"):
        nested.unbind()


def test_interpreters_say_what_they_have_copied_to_their_devices_and_from_them(
    start_daemon: StartDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    def transfers() -> dict[str, DeviceTransfers]:
        return session.interpreters()[0].transfers

    with start_daemon("--heartbeat", "0.1", workers=1).connect() as session:
        session.load(write_library("acc", LIBRARY))
        assert transfers() == {}
        x = session.put(accelerator.from_host(X, "privateuseone:1"))
        put = {"privateuseone:1": DeviceTransfers(to_device=48, from_device=0)}
        assert wait_for(lambda: transfers() == put)
        y = session.call("acc::add", x, x, remote=True)
        session.call("acc::add_", y, x)
        got = y.numpy()
        # What the calls had copied would be in these figures, too.
        both = {"privateuseone:1": DeviceTransfers(to_device=48, from_device=48)}
        assert wait_for(lambda: transfers()["privateuseone:1"].from_device)
        assert transfers() == both
        np.testing.assert_array_equal(got, 3 * X)


def test_kernels_run_on_the_device_of_their_arguments(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    where = (
        "lib.define('where(Tensor[] x) -> int')\n"
        "lib.impl('where', lambda x: accelerator.current, 'PrivateUse1')\n"
        "lib.impl('where', lambda x: accelerator.current, 'CPU')\n"
    )
    x = accelerator.from_host(X, "privateuseone:1")
    with lent_daemon.connect() as session:
        session.load(write_library("acc", LIBRARY + where))
        assert [session.ops.acc.where([each]) for each in (X, x, X)] == [0, 1, 0]
        kept = session.put(x)
        assert session.ops.acc.where([kept, kept]) == 1
        with session.program() as p:
            p.output(p.ops.acc.where([p.ops.acc.add(kept, kept)]))
        assert p.result == 1


def test_a_device_without_room_is_an_error_of_the_call(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    with lent_daemon.connect() as session:
        session.load(write_library("acc", LIBRARY))
        x = accelerator.from_host(X, "privateuseone:1")
        session.ops.acc.limit(X, 40)
        with pytest.raises(oc.DeviceMemoryError, match=r"\$\.args\[0\]: 48 bytes do not fit"):
            session.ops.acc.add(x, x)
        session.ops.acc.limit(X, 1000)
        np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)


def test_operators_without_a_kernel_for_the_device_run_on_the_host_if_that_was_asked_for(
    shared: oc.Session, write_library: WriteLibrary, accelerator: Accelerator
):
    text = (
        "from opdispatch import Library, cpu_fallback, cpu_fallback_counts\n"
        "lib = Library('host', 'DEF')\n"
        "lib.define('double_(Tensor(a!) x) -> Tensor(a!)')\n"
        "lib.define('count(Tensor x) -> int')\n"
        "def double_(x):\n"
        "    x *= 2\n"
        "    return x\n"
        "lib.impl('double_', double_, 'CPU')\n"
        "lib.impl('count', lambda x: cpu_fallback_counts().get('host::double_', 0), 'CPU')\n"
    )
    shared.load(write_library("acc", LIBRARY), interpreter="worker-1")
    shared.load(write_library("host", text), interpreter="worker-1")
    x = accelerator.from_host(X, "privateuseone:1")
    with pytest.raises(oc.NoKernelError):
        shared.ops.host.double_(x)
    fallback = "Library('_', 'IMPL').fallback(cpu_fallback, 'PrivateUse1')\n"
    shared.load(
        write_library("fallen", f"from opdispatch import Library, cpu_fallback\n{fallback}"),
        interpreter="worker-1",
    )
    assert shared.ops.host.double_(x) is x
    np.testing.assert_array_equal(accelerator.to_host(x), 2 * X)
    assert shared.ops.host.count(X) == 1
    shared.unload("fallen")
    with pytest.raises(oc.NoKernelError):
        shared.ops.host.double_(x)


def test_a_backend_comes_and_goes_with_the_library_that_registers_it(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    same = (
        "from opdispatch import Library\n"
        "lib = Library('own', 'DEF')\n"
        "lib.define('same(Tensor x) -> Tensor')\n"
        "lib.impl('same', lambda x: x, 'PrivateUse1')\n"
    )
    with lent_daemon.connect() as session:
        x = accelerator.from_host(X, "privateuseone:0")
        session.load(write_library("own", same))
        with pytest.raises(oc.WireError, match="no backend for arrays on 'privateuseone:0'"):
            session.ops.own.same(x)
        session.load(write_library("acc", LIBRARY))
        for version in range(2):  # another version of it, with classes of its own
            np.testing.assert_array_equal(accelerator.to_host(session.ops.own.same(x)), X)
            np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)
            session.load(write_library("acc", f"{LIBRARY}# {version}\n"))
        session.rollback("acc")
        np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)
        session.unload("acc")
        with pytest.raises(oc.WireError, match="no backend for arrays on 'privateuseone:0'"):
            session.ops.own.same(x)
        broken = LIBRARY.replace("lib = Library", "1 / 0\nlib = Library")
        with pytest.raises(oc.LibraryLoadError):
            session.load(write_library("acc", broken))
        with pytest.raises(oc.WireError, match="no backend for arrays on 'privateuseone:0'"):
            session.ops.own.same(x)


def test_calls_have_the_backend_of_their_kernel_while_another_version_is_imported(
    lent_daemon: RunningDaemon,
    write_library: WriteLibrary,
    accelerator: Accelerator,
    tmp_path: Path,
):
    """A backend that only its import has seen makes no arrays for kernels that are in force."""
    slow = (
        f"{LIBRARY}own = accelerator.from_host(np.ones(1), 'privateuseone:0')\n"
        "assert type(Tensor(np.ones(1)).to('privateuseone').array) is AcceleratorArray\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "(folder / 'importing').touch()\n"
        "while not (folder / 'open').exists(): threading.Event().wait(0.005)\n"
    ).replace("Library, register_backend", "Library, Tensor, register_backend")
    x = accelerator.from_host(X, "privateuseone:1")
    with lent_daemon.connect() as session, lent_daemon.connect() as loader:
        session.load(write_library("acc", LIBRARY))
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(loader.load, write_library("acc", slow))
            try:
                assert wait_for((tmp_path / "importing").exists)
                for _ in range(3):
                    total = session.ops.acc.add(x, x)
                    np.testing.assert_array_equal(accelerator.to_host(total), X + X)
            finally:
                (tmp_path / "open").touch()
            loading.result(LONGEST_WAIT)
        np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)


def test_next_version_of_a_library_knows_kept_device_values(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    """Each version has a class of arrays of its own."""
    with lent_daemon.connect() as session:
        session.load(write_library("acc", LIBRARY))
        x = session.put(accelerator.from_host(X, "privateuseone:1"))
        y = session.put(Tensor(accelerator.from_host(X, "privateuseone:0"), requires_grad=True))
        q = session.put(quantize_per_tensor(X, 0.5, 1, "qint8").to("privateuseone:1"))
        for change in (
            lambda: session.load(write_library("acc", f"{LIBRARY}# next\n")),
            lambda: session.rollback("acc"),
        ):
            change()
            session.call("acc::add_", x, accelerator.from_host(X, "privateuseone:1"))
            session.call("acc::add_", x, x)
            assert (x.device, y.device) == ("privateuseone:1", "privateuseone:0")
            np.testing.assert_array_equal(y.numpy(), X)
            assert Tensor(q.numpy()).to("cpu").shape == X.shape
        np.testing.assert_array_equal(x.numpy(), 10 * X)  # ((1 + 1) * 2 + 1) * 2
        session.unload("acc")
        np.testing.assert_array_equal(x.numpy(), 10 * X)
        session.load(write_library("acc", LIBRARY))
        session.call("acc::add_", x, accelerator.from_host(0 * X, "privateuseone:1"))
        np.testing.assert_array_equal(x.numpy(), 10 * X)


def test_kept_device_values_remain_when_their_library_moves(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """Where an interpreter is drained, and where another one takes over after an unload."""
    with start_daemon(workers=2).connect() as session:
        session.load(write_library("acc", LIBRARY), interpreter="worker-1")
        x = session.put(X, device="privateuseone:1")
        y = session.put(X, device="privateuseone:0")
        t = session.put(Tensor(X), device="privateuseone:0")
        session.drain("worker-1")
        assert wait_for(lambda: session.libraries()[0].interpreters == ("worker-2",))
        assert wait_for(lambda: not session.interpreters()[0].libraries)
        np.testing.assert_array_equal(x.numpy(), X)
        np.testing.assert_array_equal(y.to("cpu").numpy(), X)
        session.call("acc::add_", y, session.put(X, device="privateuseone:0"))
        assert (y.device, y.interpreter) == ("privateuseone:0", "worker-2")
        np.testing.assert_array_equal(y.numpy(), 2 * X)
        session.unload("acc")
        session.drain("worker-1", undo=True)
        np.testing.assert_array_equal(x.numpy() + y.numpy(), 3 * X)
        with pytest.raises(DeviceError, match="no interpreter has the device"):
            session.put(X, device="privateuseone:1")
        session.load(write_library("acc", f"{LIBRARY}# next\n"), interpreter="worker-1")
        session.call("acc::add_", x, x)
        np.testing.assert_array_equal(x.numpy(), 2 * X)
        with pytest.raises(oc.KernelError, match=r"NoKernelError: array::add\.Tensor"):
            session.call("acc::add_", t, t)  # which adds tensors


def test_a_library_may_be_a_backend_and_nothing_else(
    lent_daemon: RunningDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    backend, _, _ = LIBRARY.partition("\nlib = Library")
    x = accelerator.from_host(X, "privateuseone:1")
    with lent_daemon.connect() as session:
        session.load(write_library("kernels", KERNELS))
        for version in range(2):
            session.load(write_library("backend", f"{backend}\n# {version}\n"))
            np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)
        session.rollback("backend")
        np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)
        session.unload("backend")
        with pytest.raises(oc.WireError, match="no backend for arrays on 'privateuseone:1'"):
            session.ops.acc.add(x, x)


@pytest.mark.parametrize("brings", [1, 2])
def test_a_library_goes_where_another_one_has_brought_its_device(
    start_daemon: StartDaemon, write_library: WriteLibrary, accelerator: Accelerator, brings: int
):
    """And follows it: to another interpreter, and into the next daemon."""
    backend, _, _ = LIBRARY.partition("\nlib = Library")
    kernels = write_library("kernels", KERNELS)
    x = accelerator.from_host(X, "privateuseone:1")
    first = start_daemon(workers=2)
    with first.connect() as session:
        with pytest.raises(
            oc.InterpreterNotFoundError,
            match=r"no interpreter with a privateuseone device; connected: worker-1 \(cpu\), ",
        ):
            session.load(kernels, on="privateuseone")
        holder = f"worker-{brings}"
        session.load(write_library("zz_backend", backend), interpreter=holder)
        loaded = session.load(kernels, on="privateuseone:1")
        assert (loaded.interpreters, loaded.device) == ((holder,), "privateuseone:1")
        other = f"worker-{3 - brings}"
        with pytest.raises(
            oc.InterpreterNotFoundError, match=rf"a cuda:7 device.*{holder} \(cpu, privateuseone\)"
        ):
            session.load(kernels, on="cuda:7", name="elsewhere")
        session.drain(holder)
        assert {each.interpreters for each in session.libraries()} == {(other,)}
        np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)
    first.stop()
    with start_daemon(workers=2).connect() as session:
        np.testing.assert_array_equal(accelerator.to_host(session.ops.acc.add(x, x)), X + X)
        assert len({each.interpreters for each in session.libraries()}) == 1


def test_calls_go_to_one_of_several_interpreters_that_has_their_devices(
    start_daemon: StartDaemon, write_library: WriteLibrary, accelerator: Accelerator
):
    """Those that tensors are on, and those that other arguments name."""
    backend, _, _ = LIBRARY.partition("\nlib = Library")
    fallback = 'Library("_", "IMPL").fallback(opdispatch.cpu_fallback, "PrivateUse1")\n'
    device = "privateuseone:0"
    with start_daemon(workers=2).connect() as session:
        session.load(
            write_library("backend", f"{backend}\nimport opdispatch\n{fallback}"),
            interpreter="worker-2",
        )
        session.load("opdispatch.array_library", interpreters=2)
        session.load(write_library("everywhere", EVERYWHERE), interpreters=2)
        x = accelerator.from_host(X, device)
        for _ in range(4):  # also once the way is known
            assert session.ops.everywhere.kind(x) == "AcceleratorArray"
            assert session.ops.everywhere.kind(X) == "ndarray"
            made = session.call("array::zeros", [3], device=device, remote=True)
            assert (made.device, made.interpreter) == (device, "worker-2")
            assert session.call("array::zeros", [3], device="cpu").tolist() == [0, 0, 0]
        host = session.put(np.ones(1000), on="worker-1")
        copied = xp.zeros_like(host, device=device)
        assert (copied.device, copied.interpreter) == (device, "worker-2")
        there = session.put(X, device=device)
        first = session.call("everywhere::first", [there, host], remote=True)
        assert first.device == device
        with session.program() as program:
            program.output(program.ops.array.zeros([3], device=device), remote=True)
        assert program.result.device == device


def test_client_without_the_backend_gets_the_results_facts(
    lent_daemon: RunningDaemon, write_library: WriteLibrary
):
    registration = register_backend(Accelerator())
    with lent_daemon.connect() as session:
        session.load(write_library("acc", LIBRARY))
        kept = session.put(registration.backend.from_host(X, "privateuseone:0"))
        registration.close()
        with pytest.raises(oc.WireError, match="no backend for arrays on 'privateuseone:0'"):
            session.call("acc::add", kept, kept)
        total = session.call("acc::add", kept, kept, remote=True)
        np.testing.assert_array_equal(total.numpy(), X + X)


@pytest.mark.parametrize("has_kernels", [False, True], ids=["on the host", "on the device"])
def test_gradients_are_calculated_with_what_there_is_for_the_device(
    shared: oc.Session, write_library: WriteLibrary, has_kernels: bool
):
    """Nested calls of tensors go to a dispatcher of their own, which no library registers with."""
    host = "Library('_', 'IMPL').fallback(opdispatch.cpu_fallback, 'PrivateUse1')\n"
    device = (
        "def ones_like(x, *, dtype=None, device=None):\n"
        "    tens = accelerator.from_host(np.full(x.shape, 10.0), x.device)\n"
        "    return opdispatch.Tensor(tens)\n"
        "Library('array', 'IMPL').impl('ones_like', ones_like, 'PrivateUse1')\n"
    )
    text = LIBRARY + "import opdispatch\n" + host + device * has_kernels
    shared.load("opdispatch.array_library", on="worker-1")
    shared.load(write_library("acc", text), interpreter="worker-1")
    w = shared.put(Tensor(X, requires_grad=True), device="privateuseone:1")
    [gradient] = shared.grad(xp.sum(w * w), w)
    assert gradient.device == "privateuseone:1"
    np.testing.assert_array_equal(gradient.numpy(), (20 if has_kernels else 2) * X)
