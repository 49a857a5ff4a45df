"""The forms of an address, and the default one."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from opdispatch_wire.addresses import (
    AddressError,
    TcpAddress,
    UnixAddress,
    UnsafeAddressError,
    check_private_folder,
    check_socket_folder,
    default_address,
    grpc_target,
    is_loopback,
    parse_address,
)
from opdispatch_wire.channel import channel_options, server_options
from tests.waits import LONGEST_WAIT


@pytest.mark.parametrize(
    ("address", "parsed", "target"),
    [
        ("unix:///run/d.sock", UnixAddress("/run/d.sock"), "unix:/run/d.sock"),
        ("unix:/run/d.sock", UnixAddress("/run/d.sock"), "unix:/run/d.sock"),
        ("unix:d.sock", UnixAddress("d.sock"), "unix:d.sock"),
        ("unix:a:b.sock", UnixAddress("a:b.sock"), "unix:a%3Ab.sock"),
        ("dns:///gpu1:50051", TcpAddress("gpu1", 50051), "gpu1:50051"),
        ("tcp://gpu1:50051", TcpAddress("gpu1", 50051), "gpu1:50051"),
        ("gpu1.example.com:50051", TcpAddress("gpu1.example.com", 50051), None),
        ("127.0.0.1:0", TcpAddress("127.0.0.1", 0), "127.0.0.1:0"),
        ("[::1]:50051", TcpAddress("::1", 50051), "[::1]:50051"),
        ("dns:///[::1]:50051", TcpAddress("::1", 50051), "[::1]:50051"),
        ("tcp://[fe80::1%eth0]:1", TcpAddress("fe80::1%eth0", 1), None),
    ],
)
def test_every_accepted_form(address, parsed, target):
    assert parse_address(address) == parsed
    assert grpc_target(address) == target or target is None
    assert parse_address(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "is not understood; expected unix:///PATH"),
        ("localhost", "is not understood"),
        ("50051", "is not understood"),
        (":50051", "is not understood"),
        ("::1:50051", "is not understood"),
        ("http://gpu1:80", "is not understood"),
        ("grpc://gpu1:80", "is not understood"),
        ("user@gpu1:80", "is not understood"),
        ("gpu1:80/path", "is not understood"),
        ("gpu1:-1", "is not understood"),
        ("gpu 1:80", "is not understood"),
        ("gpu1:65536", "has port 65536; the highest one is 65535"),
        ("[gpu1]:80", "has no IPv6 address"),
        ("dns://8.8.8.8/gpu1:80", "names a DNS server"),
        ("dns:gpu1:80", "three slashes"),
        ("unix:", "names no socket file"),
        ("unix:///", "names no socket file"),
        ("unix:/run/", "names no socket file"),
        ("unix:/run/\0", "names no socket file"),
        ("unix://run/d.sock", "relative path after unix://"),
        ("unix:a,b", "has a comma"),
        ("unix:/" + "x" * 107, "has 108 bytes; a unix socket's path has at most 107"),
        ("unix:/" + "é" * 54, "has 109 bytes"),
    ],
)
def test_malformed_address_error_shows_valid_forms(address, words):
    with pytest.raises(AddressError, match=words) as caught:
        grpc_target(address)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "name", ["plain", "a b", "a%20b", "q?x", "h#x", "ü", "br[1]", "a:b", "a@b", '"<>^|{}`\\']
)
def test_grpc_listens_and_connects_at_any_path_we_accept(tmp_path, name):
    path = tmp_path / name
    target = grpc_target(f"unix:{path}")
    server = grpc.server(ThreadPoolExecutor(1), options=server_options())
    try:
        server.add_insecure_port(target)
        server.start()
        assert path.is_socket()
        with grpc.insecure_channel(target, options=channel_options()) as channel:
            grpc.channel_ready_future(channel).result(timeout=LONGEST_WAIT)
    finally:
        server.stop(None).wait(LONGEST_WAIT)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("unix:///run/d.sock", True),
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.0.1:1", False),
        ("localhost.example.com:1", False),
        ("dns:///gpu1:1", False),
    ],
)
def test_only_this_machine_is_loopback(address, expected):
    assert is_loopback(address) is expected
    assert dict(channel_options(address=address))["grpc.enable_http_proxy"] == int(not expected)


@pytest.fixture
def environment(monkeypatch):
    for name in ("OPDISPATCH_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_environment_gives_the_default_address(environment):
    environment.setenv("OPDISPATCH_ADDRESS", "gpu1:50051")
    assert default_address() == "gpu1:50051"


def test_an_empty_variable_counts_as_none(environment, tmp_path):
    environment.setenv("OPDISPATCH_ADDRESS", "")
    environment.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_address() == f"unix://{tmp_path}/opdispatch/daemon.sock"
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def without_login_session(environment, tmp_path):
    """Neither XDG_RUNTIME_DIR nor /run/user/UID; temporary files in `tmp_path`."""
    is_dir = Path.is_dir
    environment.setattr(Path, "is_dir", lambda path: "/run/user" not in str(path) and is_dir(path))
    environment.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"opdispatch-{os.getuid()}"


def test_without_a_login_session_it_is_a_private_temporary_folder(without_login_session):
    assert default_address() == f"unix://{without_login_session}/daemon.sock"
    without_login_session.mkdir(mode=0o700)
    assert default_address() == f"unix://{without_login_session}/daemon.sock"


def test_a_temporary_folder_that_others_can_write_to_is_refused(without_login_session):
    without_login_session.mkdir()
    without_login_session.chmod(0o777)
    with pytest.raises(AddressError, match=r"only you can write to.*mode 0777") as caught:
        default_address()
    assert "XDG_RUNTIME_DIR" in caught.value.hint


def test_a_temporary_folder_that_is_a_link_is_refused(without_login_session, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    without_login_session.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AddressError, match="is not a folder"):
        default_address()
    check_private_folder(tmp_path / "missing")


def test_a_runtime_folder_that_others_can_write_to_is_refused(environment, tmp_path):
    environment.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "opdispatch"
    folder.mkdir(mode=0o700)
    assert default_address() == f"unix://{folder}/daemon.sock"
    check_socket_folder(folder)
    folder.chmod(0o777)
    for check in (default_address, lambda: check_socket_folder(folder)):
        with pytest.raises(UnsafeAddressError, match=r"mode 0777"):
            check()
    check_socket_folder(tmp_path)  # which is not the default one: its owner decides
