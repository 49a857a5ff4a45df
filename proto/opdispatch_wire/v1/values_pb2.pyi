from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("none", "boolean", "integer", "floating", "complex", "text", "tensor", "list", "dtype", "device", "dict", "argument", "remote", "reference", "sparse_coo", "sparse_csr", "quantized", "nested", "generator", "packed")
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
    SPARSE_COO_FIELD_NUMBER: _ClassVar[int]
    SPARSE_CSR_FIELD_NUMBER: _ClassVar[int]
    QUANTIZED_FIELD_NUMBER: _ClassVar[int]
    NESTED_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
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
    sparse_coo: SparseCooTensor
    sparse_csr: SparseCsrTensor
    quantized: QuantizedTensor
    nested: NestedTensor
    generator: GeneratorState
    packed: Tensor
    def __init__(self, none: _Optional[_Union[NoneValue, _Mapping]] = ..., boolean: _Optional[bool] = ..., integer: _Optional[int] = ..., floating: _Optional[float] = ..., complex: _Optional[_Union[ComplexValue, _Mapping]] = ..., text: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., list: _Optional[_Union[ListValue, _Mapping]] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., dict: _Optional[_Union[DictValue, _Mapping]] = ..., argument: _Optional[_Union[ArgumentRef, _Mapping]] = ..., remote: _Optional[_Union[RemoteTensor, _Mapping]] = ..., reference: _Optional[_Union[Reference, _Mapping]] = ..., sparse_coo: _Optional[_Union[SparseCooTensor, _Mapping]] = ..., sparse_csr: _Optional[_Union[SparseCsrTensor, _Mapping]] = ..., quantized: _Optional[_Union[QuantizedTensor, _Mapping]] = ..., nested: _Optional[_Union[NestedTensor, _Mapping]] = ..., generator: _Optional[_Union[GeneratorState, _Mapping]] = ..., packed: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class GeneratorState(_message.Message):
    __slots__ = ("device", "seed", "offset", "dispatch_keys")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    device: str
    seed: int
    offset: int
    dispatch_keys: int
    def __init__(self, device: _Optional[str] = ..., seed: _Optional[int] = ..., offset: _Optional[int] = ..., dispatch_keys: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("dtype", "shape", "device", "dispatch_keys", "data", "requires_grad", "padding", "memory", "chunked", "device_memory")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    device: str
    dispatch_keys: int
    data: bytes
    requires_grad: bool
    padding: bytes
    memory: SharedMemory
    chunked: ChunkedData
    device_memory: DeviceMemory
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., device: _Optional[str] = ..., dispatch_keys: _Optional[int] = ..., data: _Optional[bytes] = ..., requires_grad: _Optional[bool] = ..., padding: _Optional[bytes] = ..., memory: _Optional[_Union[SharedMemory, _Mapping]] = ..., chunked: _Optional[_Union[ChunkedData, _Mapping]] = ..., device_memory: _Optional[_Union[DeviceMemory, _Mapping]] = ...) -> None: ...

class DeviceMemory(_message.Message):
    __slots__ = ("device_id", "handle", "offset", "length", "lease")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    device_id: bytes
    handle: bytes
    offset: int
    length: int
    lease: bytes
    def __init__(self, device_id: _Optional[bytes] = ..., handle: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., lease: _Optional[bytes] = ...) -> None: ...

class SparseCooTensor(_message.Message):
    __slots__ = ("shape", "indices", "values", "dispatch_keys", "requires_grad")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    indices: Tensor
    values: Tensor
    dispatch_keys: int
    requires_grad: bool
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., indices: _Optional[_Union[Tensor, _Mapping]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., dispatch_keys: _Optional[int] = ..., requires_grad: _Optional[bool] = ...) -> None: ...

class SparseCsrTensor(_message.Message):
    __slots__ = ("shape", "crow_indices", "col_indices", "values", "dispatch_keys", "requires_grad")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CROW_INDICES_FIELD_NUMBER: _ClassVar[int]
    COL_INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    crow_indices: Tensor
    col_indices: Tensor
    values: Tensor
    dispatch_keys: int
    requires_grad: bool
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., crow_indices: _Optional[_Union[Tensor, _Mapping]] = ..., col_indices: _Optional[_Union[Tensor, _Mapping]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., dispatch_keys: _Optional[int] = ..., requires_grad: _Optional[bool] = ...) -> None: ...

class QuantizedTensor(_message.Message):
    __slots__ = ("int_repr", "scale", "zero_point", "dispatch_keys", "requires_grad")
    INT_REPR_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    ZERO_POINT_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    int_repr: Tensor
    scale: float
    zero_point: int
    dispatch_keys: int
    requires_grad: bool
    def __init__(self, int_repr: _Optional[_Union[Tensor, _Mapping]] = ..., scale: _Optional[float] = ..., zero_point: _Optional[int] = ..., dispatch_keys: _Optional[int] = ..., requires_grad: _Optional[bool] = ...) -> None: ...

class NestedTensor(_message.Message):
    __slots__ = ("values", "offsets", "dispatch_keys", "requires_grad")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    values: Tensor
    offsets: Tensor
    dispatch_keys: int
    requires_grad: bool
    def __init__(self, values: _Optional[_Union[Tensor, _Mapping]] = ..., offsets: _Optional[_Union[Tensor, _Mapping]] = ..., dispatch_keys: _Optional[int] = ..., requires_grad: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("id", "session", "interpreter", "dtype", "shape", "device", "dispatch_keys", "requires_grad", "source", "place", "layout", "bytes", "next_place")
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
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PLACE_FIELD_NUMBER: _ClassVar[int]
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
    layout: str
    bytes: int
    next_place: int
    def __init__(self, id: _Optional[bytes] = ..., session: _Optional[bytes] = ..., interpreter: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., device: _Optional[str] = ..., dispatch_keys: _Optional[int] = ..., requires_grad: _Optional[bool] = ..., source: _Optional[_Union[ValueSource, _Mapping]] = ..., place: _Optional[int] = ..., layout: _Optional[str] = ..., bytes: _Optional[int] = ..., next_place: _Optional[int] = ...) -> None: ...

class ValueSource(_message.Message):
    __slots__ = ("lane", "address", "place", "ticket", "tls")
    LANE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    lane: str
    address: str
    place: int
    ticket: str
    tls: bool
    def __init__(self, lane: _Optional[str] = ..., address: _Optional[str] = ..., place: _Optional[int] = ..., ticket: _Optional[str] = ..., tls: _Optional[bool] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("input", "step", "items")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    input: int
    step: int
    items: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input: _Optional[int] = ..., step: _Optional[int] = ..., items: _Optional[_Iterable[int]] = ...) -> None: ...
