"""Frames of the local lane, as they come in pieces, and as a hostile peer sends them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.frame_kind import HEADER, FrameKind, frame_header
from opdispatch_wire.lanes.frames import MAX_CONTROL_BYTES, READ_AT_ONCE, FrameReader

LIMIT = 1 << 20


def encoded(kind: FrameKind, payload: bytes) -> bytes:
    return frame_header(kind, len(payload)) + payload


def feed(reader: FrameReader, data: bytes) -> list[tuple[FrameKind, bytes]]:
    """Feed all of ``data`` as a socket would and return the frames read."""
    found = []
    while data:
        space = reader.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        reader.received(count)
        data = data[count:]
        while (frame := reader.next_frame()) is not None:
            found.append((frame[0], bytes(frame[1])))
    return found


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


small = st.tuples(st.sampled_from(FrameKind), st.binary(max_size=100))
large = st.tuples(
    st.sampled_from([FrameKind.CALL, FrameKind.REPLY]),
    st.integers(READ_AT_ONCE - 20, READ_AT_ONCE + 20).map(lambda n: b"\xa5" * n),
)


@given(
    frames=st.lists(st.one_of(small, large), max_size=6),
    cuts=st.lists(st.integers(0, 2 * READ_AT_ONCE), max_size=8),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, cuts):
    data = b"".join(encoded(kind, payload) for kind, payload in frames)
    reader = FrameReader(LIMIT)
    found = [frame for piece in in_pieces(data, cuts) for frame in feed(reader, piece)]
    assert found == frames
    assert reader.is_between_frames


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_any_bytes_are_frames_or_a_wire_error(data: bytes, cut: int):
    reader = FrameReader(LIMIT)
    with contextlib.suppress(WireError):
        feed(reader, data[:cut])
        feed(reader, data[cut:])


def test_a_frame_that_is_cut_off_is_noticed():
    reader = FrameReader(LIMIT)
    assert feed(reader, encoded(FrameKind.CALL, b"abc")[:-1]) == []
    assert not reader.is_between_frames


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.pack(0, 99, bytes(3)), "kind 99"),
        (HEADER.pack(0, FrameKind.CALL, b"\0\0\1"), "padding"),
        (HEADER.pack(LIMIT + 1, FrameKind.CALL, bytes(3)), "1048577 bytes; the limit is"),
        (HEADER.pack(2**32 - 1, FrameKind.REPLY, bytes(3)), "4294967295 bytes"),
        (HEADER.pack(MAX_CONTROL_BYTES + 1, FrameKind.HELLO, bytes(3)), "HELLO frame has 65537"),
    ],
)
def test_a_header_that_cannot_be_is_refused_before_its_payload_comes(header: bytes, message: str):
    with pytest.raises(WireError, match=message):
        feed(FrameReader(LIMIT), header)


def test_a_long_payload_is_received_where_it_stays():
    reader = FrameReader(LIMIT)
    payload = bytes(range(256)) * 4096
    data = encoded(FrameKind.REPLY, payload)
    assert feed(reader, data[:5000]) == []
    assert len(reader.space()) == len(payload) + HEADER.size - 5000
    assert feed(reader, data[5000:]) == [(FrameKind.REPLY, payload)]


def test_a_payload_that_there_is_no_memory_for_is_an_error_of_its_connection(
    monkeypatch: pytest.MonkeyPatch,
):
    def exhausted(*args: object) -> None:
        raise MemoryError

    reader = FrameReader(1 << 31)
    header = frame_header(FrameKind.CALL, 1 << 30)
    reader.space()[: len(header)] = header
    reader.received(len(header))
    monkeypatch.setattr(np, "empty", exhausted)
    with pytest.raises(WireError, match="cannot allocate memory for a frame of 1073741824 bytes"):
        reader.next_frame()
