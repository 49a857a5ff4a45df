"""Text that is compiled at run time: tracebacks show its lines for as long as it can run."""

import gc
import linecache
import re
import traceback
from functools import partial

import numpy as np
import pytest

from opdispatch import Library, Tensor, trace
from opdispatch import array_api as xp
from opdispatch.boxing.generated_source import compile_function


def raises(text, error, call):
    """Whether the traceback of a call shows a line of generated text, a regular expression."""
    with pytest.raises(error) as caught:
        call()
    return re.search(text, "".join(traceback.format_exception(caught.value)))


def fail(x):
    raise ValueError("no")


def test_tracebacks_show_lines_of_array_functions_and_their_kernels():
    def call():
        xp.matmul(Tensor(np.ones((2, 3))), Tensor(np.ones((2, 3))))

    # The first call goes another way than those after it.
    for _ in range(2):
        line = r'File "<opdispatch array_api.matmul #[0-9]+>", line [0-9]+, in matmul\n +\S'
        assert raises(line, ValueError, call)
        assert raises(r"raise with_shapes\('matmul', error, \(x1, x2, \), None, ", ValueError, call)


def test_tracebacks_show_lines_of_autograd_kernels(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", fail, "CPU")
    library.register_autograd("f", lambda context, gradient: gradient)
    x = Tensor(np.ones(2), requires_grad=True)
    assert raises(r"_result = _below\(_a0\)", ValueError, lambda: dispatcher.get_schema("t::f")(x))


def test_tracebacks_show_lines_of_graphs_until_those_are_collected():
    graph = trace(lambda x, w: x @ w, np.ones((2, 3)), np.ones((3, 2)))
    other = trace(lambda x, w: w + x, np.ones(2), np.ones(2))
    other(np.ones(2), np.ones(2))
    assert raises(r"n0 = f0\(i0, i1\)", ValueError, partial(graph, np.ones(2), np.ones(3)))
    kept = {name for name in linecache.cache if name.startswith("<opdispatch graph ")}
    del graph, other
    gc.collect()
    assert kept.isdisjoint(linecache.cache)


def test_texts_of_one_title_have_files_of_their_own():
    first = compile_function("one", "def f():\n    return 1\n", {}, "f")
    second = compile_function("one", "def f():\n    return 2\n", {}, "f")
    assert (first(), second()) == (1, 2)
    lines = [linecache.getline(each.__code__.co_filename, 2) for each in (first, second)]
    assert lines == ["    return 1\n", "    return 2\n"]
    del second
    assert linecache.getline(first.__code__.co_filename, 2) == "    return 1\n"
