"""``Library.warmup``: calls that are made before a library serves."""

from __future__ import annotations

import numpy as np
import pytest

from opdispatch import Dispatcher, Library
from opdispatch.errors import OperatorNotFoundError, RegistrationError
from opdispatch.library.warmup import collected_warmup_calls


@pytest.fixture
def library() -> Library:
    library = Library("warm", "DEF", dispatcher=Dispatcher())
    library.define("scale(Tensor x, float by=2.0) -> Tensor")
    library.define("scale.int(Tensor x, str by) -> Tensor")
    return library


def test_call_is_made_at_once_in_process(library: Library):
    seen = []
    library.impl("scale", lambda x, by: seen.append(by) or x, "CPU")
    library.impl("scale.int", lambda x, by: seen.append(by) or x, "CPU")
    library.warmup("scale", np.ones(2), by=3.0)
    library.warmup("scale.int", np.ones(2), "text")
    library.warmup("warm::scale", np.ones(2), "chosen")
    assert seen == [3.0, "text", "chosen"]


def test_call_that_is_collected_finds_kernels_that_came_after_it(library: Library):
    seen = []
    with collected_warmup_calls() as calls:
        library.warmup("scale", np.ones(2))
        library.impl("scale", lambda x, by: seen.append(by) or x, "CPU")
        assert seen == []
    assert [call.operator for call in calls] == ["warm::scale"]
    calls[0].run()
    assert seen == [2.0]


def test_warmup_raises_what_the_call_raises(library: Library):
    def fail(x: object, by: float) -> None:
        raise ZeroDivisionError("by nothing")

    library.impl("scale", fail, "CPU")
    with pytest.raises(ZeroDivisionError):
        library.warmup("scale", np.ones(2))
    with pytest.raises(OperatorNotFoundError, match="warm::missing"):
        library.warmup("missing")
    library.close()
    with pytest.raises(RegistrationError, match="has been closed"):
        library.warmup("scale", np.ones(2))
