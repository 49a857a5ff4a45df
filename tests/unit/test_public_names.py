"""Each public name has a mark that says how stable it is, and docs/ has the table of them."""

import importlib
import importlib.util

import pytest

from tests.unit.test_import_layers import ROOT

PACKAGES = ("opdispatch", "opdispatch_client")


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location(
        "generate_public_names", ROOT / "docs" / "generate_public_names.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_mark(package, generator):
    marks = generator.read_marks()[package]
    assert list(marks) == importlib.import_module(package).__all__
    assert set(marks.values()) <= set(generator.MARKS)


def test_one_object_has_one_mark_in_both_packages(generator):
    marks = generator.read_marks()
    modules = [importlib.import_module(package) for package in PACKAGES]
    shared = {
        name
        for name in marks["opdispatch"].keys() & marks["opdispatch_client"].keys()
        if getattr(modules[0], name) is getattr(modules[1], name)
    }
    assert len(shared) > 15
    assert not [n for n in sorted(shared) if len({marks[p][n] for p in PACKAGES}) > 1]


def test_generating_again_gives_the_same_page(generator):
    page = generator.PAGE.read_text(encoding="utf-8")
    assert generator.generate() == page, "docs/public-names.md is stale: run `make names`"
