"""Drawings of graphs: what is in them, and that nothing lies upon anything else."""

import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest

from opdispatch import Library, Tensor, trace
from opdispatch import array_api as xp

X = np.arange(6.0).reshape(2, 3)
SVG = "{http://www.w3.org/2000/svg}"


def example():
    bias = Tensor(np.ones(2))

    def layer(x, w):
        y = xp.sum(xp.exp(x @ w) + bias, axis=0, keepdims=True)
        y[0] = 1.0
        return y, x

    return trace(layer, X, X.T.copy())


def test_a_drawing_has_a_box_for_each_value_and_an_arrow_for_each_use():
    root = ElementTree.fromstring(example().to_svg())
    boxes = {
        "/".join(span.text for span in box.iter(f"{SVG}tspan")): box.get("class")
        for box in root.iter(f"{SVG}g")
    }
    assert boxes == {
        "x/float64[2, 3]": "input",
        "w/float64[3, 2]": "input",
        "constant/float64[2]": "constant",
        "matmul/float64[2, 2]": "call",
        "exp/float64[2, 2]": "call",
        "add.Tensor/float64[2, 2]": "call",
        "sum/axis=[0], keepdims=True/float64[1, 2]": "call",
        "setitem_.Scalar/[0], [None], [None], [], 1.0/float64[1, 2]": "write",
        "return": "output",
    }
    arrows = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    assert len(arrows) == 9
    assert [path.get("class") for path in arrows].count("written") == 1
    assert example()._repr_svg_() == example().to_svg()


def test_graphviz_gets_the_same_boxes_and_arrows():
    lines = example().to_dot().splitlines()
    assert lines[0] == 'digraph "layer" {'
    assert lines[-1] == "}"
    assert '  b3 [label="matmul\\nfloat64[2, 2]", shape=box];' in lines
    assert "  b6 -> b7 [color=red];" in lines
    assert sum(" -> " in line for line in lines) == 9


def test_text_in_a_drawing_is_text(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("f(Tensor x, str s) -> Tensor")
    library.impl("f", lambda x, s: x, "CPU")
    op = dispatcher.get_schema("t::f")
    graph = trace(lambda x: op(x, '<script>"&\\' + "y" * 99), X)
    root = ElementTree.fromstring(graph.to_svg())
    texts = [span.text for span in root.iter(f"{SVG}tspan")]
    assert "t::f" in texts
    [said] = [text for text in texts if "<script>" in text]
    assert len(said) == 40
    assert said.endswith("…")
    [quoted] = re.findall(r'label="t::f\\n(.*?)\\nfloat64', graph.to_dot())
    assert quoted.startswith("'<script>\\\"&\\\\")


def test_boxes_stand_below_each_other_and_arrows_end_at_them():
    root = ElementTree.fromstring(example().to_svg())
    rects = [box.find(f"{SVG}rect") for box in root.iter(f"{SVG}g")]
    tops = [float(rect.get("y")) for rect in rects]
    ends = [top + float(rect.get("height")) for top, rect in zip(tops, rects, strict=True)]
    assert all(end + 20 < top for end, top in zip(ends, tops[1:], strict=False))
    [width] = {float(rect.get("width")) for rect in rects}
    arrows = []
    for path in (each for each in root.iter(f"{SVG}path") if each.get("marker-end")):
        numbers = [float(each) for each in re.findall(r"[-\d.]+", path.get("d"))]
        first, last = numbers[1], numbers[-1]
        if len(numbers) == 8:  # an arc: it leaves and reaches the right edge, and stays beside it
            assert numbers[0] == numbers[-2] == width
            assert min(numbers[2], numbers[4]) > width
        arrows.append(
            tuple(
                next(n for n in range(len(tops)) if tops[n] <= y <= ends[n]) for y in (first, last)
            )
        )
    assert arrows == [(0, 3), (1, 3), (3, 4), (4, 5), (2, 5), (5, 6), (6, 7), (7, 8), (0, 8)]


@pytest.mark.parametrize("shape", ["chain", "fan"])
def test_a_large_graph_is_drawn_in_time(shape):
    def function(x):
        y = x
        for _ in range(1000):
            y = x + y if shape == "chain" else xp.maximum(y, x * 2)
        return y

    graph = trace(function, X)
    began = time.process_time()
    text = graph.to_svg()
    assert time.process_time() - began < 5
    assert text.count("<g ") == len(graph.nodes) + 2


def test_a_graph_of_nothing_is_drawn():
    root = ElementTree.fromstring(trace(lambda: None).to_svg())
    assert not list(root.iter(f"{SVG}g"))
