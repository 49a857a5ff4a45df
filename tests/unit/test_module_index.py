"""Every module has a test file: one that imports it, is named after it, or is listed for it."""

from fnmatch import fnmatchcase

import pytest

from tests.module_index import ROOT, direct_tests, index, indirect_tests


def test_every_module_has_a_test_file():
    assert not [module for module, files in index().items() if not files]


def test_listed_test_files_exist():
    assert not [file for file in indirect_tests() if not (ROOT / file).is_file()]


def test_listed_modules_exist_and_have_no_other_test():
    untested = [module for module, files in direct_tests().items() if not files]
    patterns = [each for listed in indirect_tests().values() for each in listed]
    assert len(patterns) == len(set(patterns))
    for pattern in patterns:
        assert any(fnmatchcase(module, pattern) for module in untested), (
            f"{pattern} can be removed from tests/indirect_tests.toml"
        )


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("opdispatch.dispatch.registry", "tests/unit/test_registry.py"),  # imported
        ("opdispatch.tensors.tensor", "tests/unit/test_tensor.py"),  # by a name of the package
        ("opdispatch.optests.opcheck", "tests/unit/test_opcheck.py"),  # by its name
    ],
)
def test_a_test_file_is_found_for_a_module(module, file):
    assert file in direct_tests()[module]
