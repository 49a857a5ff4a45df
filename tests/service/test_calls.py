"""Calls of operators through a real daemon, compared with NumPy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import DispatchKey, ExcludeDispatchKeyGuard, Tensor
from tests.service.conftest import WriteLibrary
from tests.service.libraries import GATE, IMAGE
from tests.service.running_daemon import Background, RunningDaemon, wait_for

pytestmark = pytest.mark.smoke

X = np.arange(6.0).reshape(2, 3)

# Operators that call others, which a test may put into another interpreter.
COMPOSITE = """\
from opdispatch import Library, ops

lib = Library("composite", "DEF")
lib.define("twice(Tensor x) -> Tensor")
lib.impl("twice", lambda x: ops.image.pipeline(ops.image.pipeline(x)), "CompositeImplicitAutograd")
lib.define("accumulate_(Tensor(a!) self, Tensor[] others) -> Tensor(a!)")


def accumulate_(self, others):
    for other in others:
        assert ops.image.add_(self, other) is self
    return self


lib.impl("accumulate_", accumulate_, "CPU")
lib.define("boom(Tensor x) -> Tensor")


def boom(x):
    return ops.image.boom(x)


lib.impl("boom", boom, "CPU")
lib.define("handled(Tensor x) -> str")


def handled(x):
    try:
        ops.image.boom(x)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error.facts['exception_message']}"


lib.impl("handled", handled, "CPU")
"""


@pytest.fixture
def image(shared: oc.Session, write_library: WriteLibrary) -> oc.Session:
    """A session with the image library loaded."""
    shared.load(write_library("image", IMAGE), interpreter="worker-1")
    return shared


@pytest.fixture(params=["worker-1", "worker-2"])
def composite(image: oc.Session, write_library: WriteLibrary, request) -> oc.Session:
    """The same, with composite operators beside the image library, and across from it."""
    image.load(write_library("composite", COMPOSITE), interpreter=request.param)
    return image


def test_results_are_those_of_numpy(image: oc.Session):
    np.testing.assert_array_equal(image.ops.image.invert(X), 1 - X)
    np.testing.assert_array_equal(image.ops.image.scale(X), X * 2)
    np.testing.assert_array_equal(image.ops.image.scale(X, 0.5), X * 0.5)
    np.testing.assert_array_equal(image.ops.image.scale(X, by=3, negate=True), -X * 3)
    np.testing.assert_array_equal(image.call("image::pipeline", X), 1 - X * 3)


def test_tensors_of_one_element_are_numbers(image: oc.Session):
    assert image.ops.image.scale(X, Tensor(X.max())) == pytest.approx(X * 5)
    assert image.ops.image.scale(X, Tensor(X[:1, :1] + 2).requires_grad_()) == pytest.approx(X * 2)
    for _ in range(2):  # of calls that may go their own way from the second on
        with pytest.raises(oc.ArgumentError, match="expected float, got a tensor"):
            image.ops.image.scale(X, Tensor(X))


def test_tensor_lists_optional_arguments_and_several_returns(image: oc.Session):
    stacked, count = image.ops.image.stack([X, X + 1])
    np.testing.assert_array_equal(stacked, np.stack([X, X + 1]))
    assert count == 2
    stacked, count = image.ops.image.stack([X], mask=np.zeros((2, 3)))
    np.testing.assert_array_equal(stacked, np.zeros((1, 2, 3)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "complex128"])
def test_dtypes_survive_the_way_there_and_back(image: oc.Session, dtype: str):
    x = np.array([[0, 1], [1, 0]]).astype(dtype)
    stacked, _ = image.ops.image.stack([x])
    assert stacked.dtype == x.dtype
    np.testing.assert_array_equal(stacked[0], x)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1, 1)])
def test_shapes_at_the_edge(image: oc.Session, shape: tuple[int, ...]):
    x = np.ones(shape)
    result = image.ops.image.invert(x)
    assert result.shape == shape
    np.testing.assert_array_equal(result, np.zeros(shape))


def test_arrays_in_another_order_or_byte_order(image: oc.Session):
    for x in (X.T, X[:, ::-1], X.astype(">f8"), np.asfortranarray(X)):
        np.testing.assert_array_equal(image.ops.image.invert(x), 1 - x)


def test_an_argument_that_is_written_to_changes_at_the_caller(image: oc.Session):
    x, y = np.ones(3), np.arange(3.0)
    assert image.ops.image.add_(x, y) is x
    np.testing.assert_array_equal(x, [1, 2, 3])
    np.testing.assert_array_equal(y, [0, 1, 2])


def test_nested_calls_within_and_across_interpreters(composite: oc.Session):
    np.testing.assert_array_equal(composite.ops.composite.twice(X), 1 - (1 - X * 3) * 3)


def test_nested_writes_within_and_across_interpreters(composite: oc.Session):
    x = np.zeros(3)
    assert composite.ops.composite.accumulate_(x, [np.ones(3), np.arange(3.0)]) is x
    np.testing.assert_array_equal(x, [1, 2, 3])


def test_the_trace_of_nested_calls_names_depths_and_interpreters(composite: oc.Session):
    _, lines = composite.trace("composite::twice", X)
    home = next(lib for lib in composite.libraries() if lib.name == "composite").interpreters[0]
    nested = [
        (1, "image::pipeline", "math kernel"),
        (2, "image::scale", "kernel"),
        (2, "image::invert", "kernel"),
    ]
    assert [(line.depth, line.operator, line.reason) for line in lines] == [
        (0, "composite::twice", "math kernel"),
        *nested,
        *nested,
    ]
    assert {line.key for line in lines} == {"CPU"}
    assert [line.interpreter for line in lines] == ["", *["worker-1"] * 6]
    assert lines[0].kernel == "composite.py:5"
    assert home in ("worker-1", "worker-2")


def test_a_kernels_exception_arrives_with_its_traceback(image: oc.Session):
    with pytest.raises(oc.KernelError) as caught:
        image.ops.image.boom(X)
    error = caught.value
    assert str(error) == (
        "the kernel of image::boom in interpreter worker-1 raised ValueError: no picture: (2, 3)"
    )
    assert error.facts["exception_type"] == "ValueError"
    assert error.facts["exception_message"] == "no picture: (2, 3)"
    assert error.facts["interpreter"] == "worker-1"
    assert error.facts["operator"] == "image::boom"
    assert error.facts["traceback"] == (
        "Traceback (most recent call last):\n"
        '  File "image.py", line 37, in boom\n'
        '    raise ValueError(f"no picture: {x.shape}")\n'
        "ValueError: no picture: (2, 3)"
    )


def test_an_exception_of_a_nested_call_names_both_operators(composite: oc.Session):
    with pytest.raises(oc.KernelError) as caught:
        composite.ops.composite.boom(X)
    assert "composite::boom in interpreter worker-" in str(caught.value)
    assert "no picture: (2, 3)" in str(caught.value)
    assert caught.value.facts["operator"] == "composite::boom"
    traceback = caught.value.facts["traceback"]
    assert "return ops.image.boom(x)" in traceback
    assert 'raise ValueError(f"no picture: {x.shape}")' in traceback


def test_a_kernel_can_handle_the_error_of_a_kernel_elsewhere(
    image: oc.Session, write_library: WriteLibrary
):
    image.load(write_library("composite", COMPOSITE), interpreter="worker-2")
    assert image.ops.composite.handled(X) == "KernelError: no picture: (2, 3)"


def test_overloads_are_chosen_by_the_arguments(shared: oc.Session, write_library: WriteLibrary):
    text = (
        "from opdispatch import Library\nlib = Library('over', 'DEF')\n"
        "lib.define('add.Tensor(Tensor x, Tensor y) -> Tensor')\n"
        "lib.define('add.Name(Tensor x, str name) -> str')\n"
        "lib.impl('add.Tensor', lambda x, y: x + y, 'CPU')\n"
        "lib.impl('add.Name', lambda x, name: name * 2, 'CPU')\n"
    )
    shared.load(write_library("over", text))
    np.testing.assert_array_equal(shared.ops.over.add(X, X), X + X)
    assert shared.ops.over.add(X, "ab") == "abab"
    assert shared.ops.over.add.Name(X, "c") == "cc"
    with pytest.raises(oc.ArgumentError, match="no overload of over::add takes these arguments"):
        shared.ops.over.add(X)


def test_dispatch_keys_of_the_arguments_and_of_the_caller_choose_the_kernel(
    shared: oc.Session, write_library: WriteLibrary
):
    text = (
        "from opdispatch import Library, DispatchKeySet, DispatchKey, ops\n"
        "lib = Library('layers', 'DEF')\n"
        "lib.define('where(Tensor x) -> str')\n"
        "lib.impl('where', lambda x: 'cpu', 'CPU')\n"
        "def autograd(keys, x):\n"
        "    below = keys - DispatchKeySet.of(DispatchKey.AutogradFunctionality)\n"
        "    return 'autograd over ' + ops.layers.where.default.redispatch(below, x)\n"
        "lib.impl('where', autograd, 'AutogradCPU', with_keyset=True)\n"
    )
    shared.load(write_library("layers", text), interpreter="worker-1")
    assert shared.ops.layers.where(X) == "cpu"
    tensor = Tensor(X, requires_grad=True)
    assert shared.ops.layers.where(tensor) == "autograd over cpu"
    with ExcludeDispatchKeyGuard(DispatchKey.AutogradCPU):
        assert shared.ops.layers.where(tensor) == "cpu"
    # The same with the lower kernel in another interpreter, below the upper one.
    lower = (
        "from opdispatch import Library\nlib = Library('layers', 'IMPL')\n"
        "lib.impl('where', lambda x: 'other cpu', 'CPU', allow_override=True)\n"
    )
    shared.load(write_library("lower", lower), interpreter="worker-2")
    assert shared.ops.layers.where(tensor) == "autograd over other cpu"


def test_autograds_fallback_runs_where_the_operator_is(image: oc.Session):
    tensor = Tensor(X, requires_grad=True)
    result, lines = image.trace("image::pipeline", tensor)
    np.testing.assert_array_equal(result.array, 1 - X * 3)
    result, lines = image.trace("image::invert", tensor)
    np.testing.assert_array_equal(result.array, 1 - X)
    found = [(line.depth, line.operator[:5], line.key, line.reason) for line in lines]
    assert found == [
        (0, "image", "AutogradCPU", "backend fallback"),
        (1, "image", "CPU", "kernel"),
        # The kernel's own arithmetic, on a tensor: below Autograd.
        (2, "array", "CPU", "kernel"),
    ]


def test_many_calls_at_once(image: oc.Session):
    def work(number: int) -> bool:
        x = np.full((4, 4), float(number))
        return bool((image.ops.image.pipeline(x) == 1 - x * 3).all())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(200)))
    # Of direct calls, as many as with its last heartbeat.
    assert wait_for(lambda: not any(each.calls_in_flight for each in image.interpreters()))


def test_kernels_run_beside_each_other(
    shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    shared.load(write_library("gate", GATE))
    folder = str(tmp_path)
    with (
        Background(shared.ops.gate.wait, X, folder, 1) as one,
        Background(shared.ops.gate.wait, X, folder, 2) as two,
    ):
        entered = [tmp_path / "entered-1", tmp_path / "entered-2"]
        assert wait_for(lambda: all(path.exists() for path in entered))
        [library] = shared.libraries()
        assert library.calls_in_flight == 2
        (tmp_path / "open").touch()
        assert (one.result(), two.result()) == (1, 2)
    [library] = shared.libraries()
    assert library.calls_in_flight == 0


def test_calls_that_wait_for_each_other_across_interpreters_do_not_run_out_of_threads(
    shared: oc.Session, write_library: WriteLibrary
):
    # More calls at once than an interpreter has threads, each of which needs the other
    # interpreter, which needs the first one again.
    for number in (1, 2):
        other = 3 - number
        text = (
            "from opdispatch import Library, ops\n"
            f"lib = Library('ping{number}', 'DEF')\n"
            "lib.define('hit(Tensor x, int left) -> int')\n"
            "def hit(x, left):\n"
            f"    return 1 + ops.ping{other}.hit(x, left - 1) if left else 0\n"
            "lib.impl('hit', hit, 'CPU')\n"
        )
        shared.load(write_library(f"ping{number}", text), interpreter=f"worker-{number}")
    assert shared.ops.ping1.hit(X, 5) == 5
    with ThreadPoolExecutor(40) as pool:
        results = pool.map(lambda _: shared.ops.ping1.hit(X, 3), range(80))
        assert list(results) == [3] * 80
    with pytest.raises(oc.KernelError, match="RecursionError") as caught:
        shared.ops.ping1.hit(X, 1000)
    assert "calls deep across interpreters" in str(caught.value)


@pytest.mark.parametrize("of", ["the session", "the call"])
def test_the_deadline_reaches_nested_calls(
    lent_daemon: RunningDaemon,
    shared: oc.Session,
    write_library: WriteLibrary,
    tmp_path: Path,
    of: str,
):
    text = (
        "from opdispatch import Library, ops\n"
        "lib = Library('outer', 'DEF')\n"
        "lib.define('wait(Tensor x, str folder) -> str')\n"
        "def wait(x, folder):\n"
        "    try:\n"
        "        ops.gate.wait(x, folder, 1)\n"
        "    except TimeoutError as error:\n"
        "        open(folder + '/outcome', 'w').write(type(error).__name__)\n"
        "        raise\n"
        "lib.impl('wait', wait, 'CPU')\n"
    )
    shared.load(write_library("gate", GATE), interpreter="worker-1")
    shared.load(write_library("outer", text), interpreter="worker-2")
    of_session, of_call = (1.0, None) if of == "the session" else (60.0, 1.0)
    with (
        lent_daemon.connect(timeout=of_session) as session,
        pytest.raises(oc.DeadlineExceededError),
    ):
        session.with_options(timeout=of_call).ops.outer.wait(X, str(tmp_path))
    outcome = tmp_path / "outcome"
    assert wait_for(lambda: outcome.exists() and outcome.read_text())
    assert outcome.read_text() == "DeadlineExceededError"
    (tmp_path / "open").touch()
    # Counted down when the daemon gave up on it, whatever the kernel is doing.
    assert all(library.calls_in_flight == 0 for library in shared.libraries())


def test_output_of_kernels_goes_to_the_log(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    text = (
        "import sys\nfrom opdispatch import Library\nlib = Library('loud', 'DEF')\n"
        "lib.define('say(Tensor x) -> ()')\n"
        "def say(x):\n"
        "    print('to stdout')\n"
        "    print('to stderr', file=sys.stderr)\n"
        "    print('y' * 20_000)\n"
        "lib.impl('say', say, 'CPU')\n"
    )
    shared.load(write_library("loud", text), interpreter="worker-2")
    assert shared.ops.loud.say(X) is None
    assert wait_for(lambda: "yyy" in lent_daemon.log())
    messages = [record["message"] for record in lent_daemon.log_records()]
    assert "worker-2: to stdout" in messages
    assert "worker-2: to stderr" in messages
    assert max(len(message) for message in messages) < 10_000


async def test_the_asyncio_session_calls_too(shared_daemon: RunningDaemon, image: oc.Session):
    async with oc.aio.connect(shared_daemon.address) as session:
        np.testing.assert_array_equal(await session.ops.image.invert(X), 1 - X)
        with pytest.raises(oc.KernelError):
            await session.call("image::boom", X)


def test_client_that_goes_away_in_the_middle_harms_no_other(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    shared.load(write_library("gate", GATE))
    gone = lent_daemon.connect()
    with Background(gone.ops.gate.wait, X, str(tmp_path), 1) as call:
        assert wait_for((tmp_path / "entered-1").exists)
        gone.close()
        with pytest.raises(oc.OpdispatchError):
            call.result()
    assert wait_for(lambda: shared.libraries()[0].calls_in_flight == 0)
    (tmp_path / "open").touch()
    assert shared.ops.gate.wait(X, str(tmp_path), 2) == 2
