"""Resources that the system refuses: errors that name them."""

from __future__ import annotations

import errno
import os

import pytest

from opdispatch.errors import OpdispatchError
from opdispatch_wire.errors import ResourceLimitError
from opdispatch_wire.resource_limits import find_resource_limit
from opdispatch_wire.status import error_from_status, status_from_error


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/x"), "file descriptors"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "files that the system may have open"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "space on its disk"),
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "threads"),
    ],
)
def test_status_names_the_resource_that_has_run_out(error: Exception, resource: str):
    told = error_from_status(status_from_error(error))
    assert isinstance(told, ResourceLimitError)
    assert told.facts["resource"] == resource
    assert f"no {resource} left" in str(told)
    assert "/x" not in str(told), "names of files may be private"


@pytest.mark.parametrize(
    "error", [OSError(errno.EACCES, "no"), OSError("odd"), RuntimeError("odd"), ValueError("odd")]
)
def test_other_errors_stay_internal(error: Exception):
    assert find_resource_limit(error) is None
    told = error_from_status(status_from_error(error))
    assert type(told) is OpdispatchError
    assert f"internal error ({type(error).__name__})" in str(told)
