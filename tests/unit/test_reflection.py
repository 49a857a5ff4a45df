"""The reflection service, whose package is imported with the first request for it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from grpc_reflection.v1alpha import reflection

from opdispatch_server.serving.reflection import REFLECTION, ReflectionHandler
from tests.waits import LONGEST_WAIT

IMPORTED_LATER = """\
import sys
from types import SimpleNamespace
from opdispatch_server.serving.reflection import REFLECTION, ReflectionHandler
handler = ReflectionHandler(("a.Service",))
assert handler.service(SimpleNamespace(method="/a.Service/Method")) is None
assert "grpc_reflection.v1alpha" not in sys.modules
assert handler.service(SimpleNamespace(method=f"/{REFLECTION}/ServerReflectionInfo")) is not None
assert "grpc_reflection.v1alpha" in sys.modules
"""


def find(method: str) -> Any:
    details: Any = SimpleNamespace(method=method)
    return ReflectionHandler(("a.Service",)).service(details)


def test_reflection_serves_its_own_methods_alone():
    assert reflection.SERVICE_NAME == REFLECTION
    assert find(f"/{REFLECTION}/ServerReflectionInfo").request_streaming
    for other in (f"/{REFLECTION}/Other", f"/{REFLECTION}", "/a.Service/ServerReflectionInfo", ""):
        assert find(other) is None


def test_package_of_reflection_is_imported_with_the_first_request():
    command = (sys.executable, "-c", IMPORTED_LATER)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT)
    assert done.returncode == 0, done.stderr
