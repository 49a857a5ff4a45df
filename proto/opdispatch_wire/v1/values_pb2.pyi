from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("none", "boolean", "integer", "floating", "complex", "text", "tensor", "list", "dtype", "device", "dict", "argument", "remote", "reference")
    NONE_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    FLOATING_FIELD_NUMBER: _ClassVar[int]
    COMPLEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DICT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    none: NoneValue
    boolean: bool
    integer: int
    floating: float
    complex: ComplexValue
    text: str
    tensor: Tensor
    list: ListValue
    dtype: str
    device: str
    dict: DictValue
    argument: ArgumentRef
    remote: RemoteTensor
    reference: Reference
    def __init__(self, none: _Optional[_Union[NoneValue, _Mapping]] = ..., boolean: _Optional[bool] = ..., integer: _Optional[int] = ..., floating: _Optional[float] = ..., complex: _Optional[_Union[ComplexValue, _Mapping]] = ..., text: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., list: _Optional[_Union[ListValue, _Mapping]] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., dict: _Optional[_Union[DictValue, _Mapping]] = ..., argument: _Optional[_Union[ArgumentRef, _Mapping]] = ..., remote: _Optional[_Union[RemoteTensor, _Mapping]] = ..., reference: _Optional[_Union[Reference, _Mapping]] = ...) -> None: ...

class NoneValue(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ComplexValue(_message.Message):
    __slots__ = ("real", "imaginary")
    REAL_FIELD_NUMBER: _ClassVar[int]
    IMAGINARY_FIELD_NUMBER: _ClassVar[int]
    real: float
    imaginary: float
    def __init__(self, real: _Optional[float] = ..., imaginary: _Optional[float] = ...) -> None: ...

class ListValue(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, items: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class DictValue(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: Value
        value: Value
        def __init__(self, key: _Optional[_Union[Value, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DictValue.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[DictValue.Entry, _Mapping]]] = ...) -> None: ...

class ArgumentRef(_message.Message):
    __slots__ = ("position", "name")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    position: int
    name: str
    def __init__(self, position: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "device", "dispatch_keys", "data", "requires_grad", "padding", "memory", "chunked")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    device: str
    dispatch_keys: int
    data: bytes
    requires_grad: bool
    padding: bytes
    memory: SharedMemory
    chunked: ChunkedData
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., device: _Optional[str] = ..., dispatch_keys: _Optional[int] = ..., data: _Optional[bytes] = ..., requires_grad: _Optional[bool] = ..., padding: _Optional[bytes] = ..., memory: _Optional[_Union[SharedMemory, _Mapping]] = ..., chunked: _Optional[_Union[ChunkedData, _Mapping]] = ...) -> None: ...

class ChunkedData(_message.Message):
    __slots__ = ("number", "length")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    number: int
    length: int
    def __init__(self, number: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("region", "offset", "length", "read_only")
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    region: int
    offset: int
    length: int
    read_only: bool
    def __init__(self, region: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., read_only: _Optional[bool] = ...) -> None: ...

class RemoteTensor(_message.Message):
    __slots__ = ("id", "session", "interpreter", "dtype", "shape", "device", "dispatch_keys", "requires_grad", "source", "place")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    session: bytes
    interpreter: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    device: str
    dispatch_keys: int
    requires_grad: bool
    source: ValueSource
    place: int
    def __init__(self, id: _Optional[bytes] = ..., session: _Optional[bytes] = ..., interpreter: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., device: _Optional[str] = ..., dispatch_keys: _Optional[int] = ..., requires_grad: _Optional[bool] = ..., source: _Optional[_Union[ValueSource, _Mapping]] = ..., place: _Optional[int] = ...) -> None: ...

class ValueSource(_message.Message):
    __slots__ = ("lane", "address", "place")
    LANE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    lane: str
    address: str
    place: int
    def __init__(self, lane: _Optional[str] = ..., address: _Optional[str] = ..., place: _Optional[int] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("input", "step", "items")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    input: int
    step: int
    items: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input: _Optional[int] = ..., step: _Optional[int] = ..., items: _Optional[_Iterable[int]] = ...) -> None: ...
