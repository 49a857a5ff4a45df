from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LaneHello(_message.Message):
    __slots__ = ("protocol_version", "max_message_bytes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    max_message_bytes: int
    def __init__(self, protocol_version: _Optional[int] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...

class LaneWelcome(_message.Message):
    __slots__ = ("protocol_version", "max_message_bytes", "lane")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    max_message_bytes: int
    lane: int
    def __init__(self, protocol_version: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., lane: _Optional[int] = ...) -> None: ...

class LaneCancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...
