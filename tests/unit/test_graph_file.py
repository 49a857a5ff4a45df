"""Graphs in files: what was saved is there again, and what is no graph is refused."""

import io
import json
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import (
    GraphError,
    Library,
    OpdispatchError,
    Tensor,
    load_graph,
    save_graph,
    trace,
)
from opdispatch import array_api as xp

X = np.arange(6.0).reshape(2, 3)


def saved(graph):
    file = io.BytesIO()
    save_graph(graph, file)
    return file.getvalue()


def reloaded(graph):
    return load_graph(io.BytesIO(saved(graph)))


def example():
    weight = Tensor(X.T.astype(np.float32).copy(), requires_grad=True)
    scale = np.array(2.0, ml_dtypes.bfloat16)

    def function(x, *more, n=3, **named):
        q, _ = xp.linalg.qr(x @ xp.astype(weight, xp.float64))
        q[0] = more[0][0, 1:]
        y = xp.multiply(xp.astype(x, scale.dtype), scale)
        return {"q": q * n, 1: (y, None, 1j, float("nan")), "x": [named["last"]]}

    given = X.copy(), X + 1
    return trace(lambda *a, **k: function(*a, **k), *given, last=X[0].copy()), given


def test_saved_graph_loads_unchanged(tmp_path):
    graph, given = example()
    path = tmp_path / "some.graph"
    save_graph(graph, path)
    again = load_graph(str(path))
    assert str(again) == str(graph)
    assert again.signature == graph.signature
    assert (again.inputs, again.outputs.keys()) == (graph.inputs, graph.outputs.keys())
    assert [node.schema for node in again.nodes] == [node.schema for node in graph.nodes]
    one, other = again(*given, last=X[0]), graph(*given, last=X[0])
    np.testing.assert_array_equal(one["q"].detach(), other["q"].detach())
    assert np.isnan(one[1][3])
    weight = again.constants[0].tensor
    assert weight.requires_grad
    assert weight.array.flags.writeable
    assert again.constants[1].tensor.dtype == ml_dtypes.bfloat16
    assert saved(again) == saved(graph) == path.read_bytes()


@pytest.mark.parametrize(
    ("constant", "why"),
    [
        (Tensor(X).to_sparse(), "its layout is sparse_coo, and not dense"),
        (Tensor(X).to("meta"), "has no elements to copy"),
    ],
)
def test_a_constant_that_no_file_can_have_is_refused(constant, why, tmp_path, dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("first(Tensor x, Tensor y) -> Tensor")
    library.impl("first", lambda x, y: x, "CompositeExplicitAutograd")
    first = dispatcher.get_schema("t::first")
    graph = trace(lambda x: first(x, constant), X)
    with pytest.raises(GraphError, match=f"constant 'constant' of .*{why}.*make it an input"):
        save_graph(graph, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_argument_that_no_file_can_have_is_refused(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("draw(Tensor x, *, Generator? generator=None) -> Tensor")
    library.impl("draw", lambda x, *, generator: x + generator.random(), "CPU")
    draw = dispatcher.get_schema("t::draw")
    generator = np.random.default_rng(0)

    def function(x):
        draw(x, generator=generator)
        return draw(x, generator=generator)

    graph = trace(function, X)
    assert len(graph.eliminate_dead_code().nodes) == 2  # the generator goes on by two
    with pytest.raises(
        GraphError, match=r"an argument of draw .*is of type Generator, which no file"
    ):
        saved(graph)
    with pytest.raises(GraphError, match="Generator, which cannot be part of a program"):
        _ = graph.code


# -- hostile files ------------------------------------------------------------------------------


def document():
    with zipfile.ZipFile(io.BytesIO(saved(example()[0]))) as archive:
        return json.loads(archive.read("graph.json")), {
            name: archive.read(name) for name in archive.namelist() if name != "graph.json"
        }


def packed(text, members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("graph.json", text if isinstance(text, str | bytes) else json.dumps(text))
        for name, data in members.items():
            archive.writestr(name, data)
    return io.BytesIO(file.getvalue())


def change(path, value):
    """The document with one thing in it changed; and its constants."""
    found, members = document()
    *way, last = path
    inner = found
    for key in way:
        inner = inner[key]
    inner[last] = value
    return found, members


DEEP = []
for _ in range(60):
    DEEP = [DEEP]

HOSTILE = [
    (["format"], "torch", r"\$\.format is 'torch'; expected 'opdispatch graph'"),
    (["version"], 2, r"\$\.version is 2; this version reads 1"),
    (["name"], "f(x): import os #", r"\$\.name is .*, and no identifier"),
    (["name"], "import", "no identifier"),
    (["inputs"], {}, r"\$\.inputs is not a list"),
    (["inputs", 0, "name"], "ops", "'ops', which something else is called"),
    (["inputs", 1, "name"], "a_0", "'a_0', which something else is called"),
    (
        ["inputs", 0, "tensor"],
        ["float64", [-1], "cpu", "strided"],
        "expected dtype, shape, device and layout",
    ),
    (["inputs", 0, "tensor"], "float64", r"\$\.inputs\[0\] has 'tensor' with 'float64'"),
    (["parameters", 0, "kind"], "ANY", "of no kind that parameters are of"),
    (["parameters", 0, "kind"], "VAR_KEYWORD", "is of kind VAR_KEYWORD and has tuple"),
    (["parameters", 1, "name"], "a", "none of a function: duplicate parameter name"),
    (["parameters", 0, "given"], {"tuple": []}, "do not have each input once"),
    (["parameters", 0, "given"], {"tuple": [{"value": ["constant", 0]}]}, "do not have each input"),
    (["operators"], [], r"\$\.operators is not an object"),
    (["operators", "array::matmul"], 3, "is not a string: 3"),
    (["operators", "array::matmul"], "matmul(", "does not parse"),
    (["operators", "array::matmul"], "array::exp(Tensor x) -> Tensor", "the schema of another one"),
    (["operators", "exp"], None, "is no operator in a namespace"),
    (["operators", "a b"], None, "does not parse"),
    (["nodes", 0, "operator"], "os::system", r"which is not in \$\.operators"),
    (["nodes", 0, "args"], "x", r"\$\.nodes\[0\]\.args is not a list: 'x'"),
    (["nodes", 0, "args", 0], {"value": ["node", 0]}, "refers to node 0, which is not there yet"),
    (["nodes", 0, "args", 0], {"value": ["node", -1]}, "expected a source and numbers"),
    (["nodes", 0, "args", 0], {"value": ["node", True]}, "expected a source and numbers"),
    (["nodes", 0, "args", 0], {"value": [["input"], 0]}, "expected a source and numbers"),
    (["nodes", 0, "args", 0], {"value": []}, "expected a source and numbers"),
    (["nodes", 0, "args", 0], {"value": ["input", 0, 0]}, "an item that is not there"),
    (["nodes", 1, "args", 0], {"value": ["node", 0, 7]}, "an item that is not there"),
    (["nodes", 0, "args", 0], {"value": ["input", 10**40]}, "refers to input"),
    (["nodes", 0, "args", 0], {"pickle": "gASVCg=="}, "'pickle' with 'gASVCg==', which means"),
    (["nodes", 0, "args", 0], {"dtype": "object"}, "dtype 'object', which there is none of"),
    (["nodes", 0, "args", 0], {"tensor": ["f", [], "cpu", "x"]}, "says what a tensor was"),
    (["nodes", 0, "args", 0], {"float": "1e3"}, "which means nothing"),
    (["nodes", 0, "args", 0], {"complex": [1, "a"]}, "which means nothing"),
    (["nodes", 0, "args", 0], {"dict": [[[], 1]]}, "a key of type list"),
    (["nodes", 0, "args", 0], {"dict": [3]}, "is not a pair"),
    (["nodes", 0, "args", 0], {"a": 1, "b": 2}, "an object with 2 keys"),
    (["nodes", 0, "args", 0], DEEP, "nests more than 32 levels"),
    (["nodes", 0, "returns"], {"value": ["input", 0]}, "expected what a tensor was"),
    (["nodes", 0, "kwargs"], None, "is not an object: None"),
    (["nodes", 0], 7, "is not an object: 7"),
    (["outputs"], {"value": ["node", 99]}, r"\$\.outputs refers to node 99"),
    (["constants", 0, "dtype"], "object", "dtype 'object', which there is none of"),
    (["constants", 0, "shape"], [2, 3, 10**12], "constants/0 has 24 bytes; expected"),
    (["constants", 0, "shape"], [0], "constants/0 has 24 bytes; the limit is 0"),
    (["constants", 0, "shape"], [1] * 65 + [6], "at most 64 dimensions"),
    (["constants", 0, "shape"], [2.5], "does not say name, dtype, shape"),
    (["constants", 0, "name"], "import", "no identifier"),
    (["constants", 0], [], "is not an object"),
]


@pytest.mark.parametrize(("path", "value", "why"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_document_that_is_no_graph_is_refused(path, value, why):
    with pytest.raises(GraphError, match=why):
        load_graph(packed(*change(path, value)))


def test_a_file_that_is_no_graph_is_refused(tmp_path):
    found, members = document()
    data = saved(example()[0])
    for text, why in [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("9" * 10_000, "is not JSON"),
        (b"\xff\xfe\xfa", "is not JSON"),
        ("[]", r"the graph's \$ is not an object"),
    ]:
        with pytest.raises(GraphError, match=why):
            load_graph(packed(text, members))
    with pytest.raises(GraphError, match="has no constants/0"):
        load_graph(packed(found, {}))
    with pytest.raises(GraphError, match="compressed or encrypted"):
        load_graph(packed(found, members, zipfile.ZIP_DEFLATED))
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    with pytest.raises(GraphError, match=r"the file has no graph\.json"):
        load_graph(empty)
    many = {f"constants/{n}": b"" for n in range(9)}
    crowded = bytearray(packed(found, members | many).getvalue())
    place = len(crowded)
    for _ in range(9):  # the sizes in the directory at the end
        place = crowded.rindex(b"PK\x01\x02", 0, place)
        crowded[place + 20 : place + 28] = (len(data)).to_bytes(4, "little") * 2
    with pytest.raises(GraphError, match="bytes, and its members claim"):
        load_graph(io.BytesIO(bytes(crowded)))
    for broken in (b"", b"PK", data[: len(data) // 2], data[:80] + b"\0" * 80 + data[160:]):
        with pytest.raises(GraphError):
            load_graph(io.BytesIO(broken))
    with pytest.raises(FileNotFoundError):
        load_graph(tmp_path / "nowhere")


WHOLE = saved(example()[0])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=3))
def test_damaged_file_is_a_graph_or_raises(damages):
    data = bytearray(WHOLE)
    for place, byte in damages:
        data[place] = byte
    try:
        graph = load_graph(io.BytesIO(bytes(data)))
    except OpdispatchError:
        return
    assert str(graph)
    assert graph.to_svg()
