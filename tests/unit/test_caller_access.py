"""The checks of callers that a configuration asks for."""

from pathlib import Path

import pytest

from opdispatch_server.daemon.caller_access import CallerAccess, absolute
from opdispatch_server.daemon_configuration import DaemonConfiguration
from opdispatch_server.serving.run_folder import RunFolder
from opdispatch_server.serving.server_certificates import TlsError


def access(**settings):
    return CallerAccess(DaemonConfiguration((), (), Path(), **settings), RunFolder(Path("/r"), -1))


def test_ports_are_not_secured_without_tokens_and_certificates():
    bare = access()
    assert not bare.is_secured
    assert bare.tls is None
    assert not bare.authentication.has_tokens


@pytest.mark.parametrize("given", ["tls_cert", "tls_key", "tls_client_ca"])
def test_tls_requires_a_certificate_with_its_key(given):
    with pytest.raises(TlsError, match="--tls-cert and --tls-key"):
        _ = access(**{given: Path("file.pem")}).tls


def test_own_credentials_have_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = access(tls_cert=Path("cert.pem"), tls_key=Path("key.pem")).own_credentials
    assert (own.tls_cert, own.tls_key) == (f"{tmp_path}/cert.pem", f"{tmp_path}/key.pem")
    assert own.tls_ca == absolute(None) == ""
