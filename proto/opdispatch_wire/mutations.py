"""Send back the new contents of arguments that an operator writes to.

    callee      add_mutations     ->  CallReply.mutations
    caller                            prepare_write

See Note [Arguments that are written to] in calls.py.
"""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays import describe_type, find_backend, is_foreign, view_by_dlpack
from opdispatch.errors import ArgumentError
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.errors import WireError
from opdispatch_wire.layouts import layout_of
from opdispatch_wire.tensors import fill_tensor, tensor_from_proto
from opdispatch_wire.v1 import execution_pb2, values_pb2

if TYPE_CHECKING:
    from opdispatch_wire.tensors import CalleeTensorMemory, CallerTensorMemory


# Work limit of np.shares_memory, whose exact answer can take exponential time.
_MOST_WORK: Any = 10_000  # Any: NumPy's stubs allow only the values 0 and -1


def add_mutations(
    reply: execution_pb2.CallReply,
    request: execution_pb2.CallRequest,
    reference: values_pb2.ArgumentRef,
    value: Any,
    memory: CalleeTensorMemory | None,
) -> None:
    """Add the contents of a mutated argument, or of each of its items, to the reply.

    Remote tensors are skipped: their contents stay in the interpreter. Raises WireError if the
    contents cannot be encoded.
    """
    items = enumerate(value) if isinstance(value, list | tuple) else ((None, value),)
    for place, item in items:
        sent = _sent_value(request, reference, place)
        if item is None or sent.WhichOneof("kind") == "remote":
            continue
        mutation = reply.mutations.add(argument=reference, item=place)
        if memory is not None and memory.is_in_place(sent, item):
            continue
        at = f"$.mutations[{len(reply.mutations) - 1}].value"
        fill_tensor(mutation.value, item, at=at, memory=memory)


def check_can_be_written(value: Any, at: str) -> None:
    """Raise WireError if an argument, or an item of it, is not a dense tensor."""
    if isinstance(value, list | tuple):
        for i, item in enumerate(value):
            check_can_be_written(item, f"{at}[{i}]")
    elif layout := layout_of(value):
        raise WireError(
            f"{at} is a {layout.name} tensor, and the operator writes to it; remote calls can "
            "write only to dense tensors",
            hint="use an operator that returns a new tensor",
        )


def _sent_value(
    request: execution_pb2.CallRequest, reference: values_pb2.ArgumentRef, item: int | None
) -> values_pb2.Value:
    if reference.WhichOneof("which") == "name":
        value = request.kwargs[reference.name]
    else:
        value = request.args[reference.position]
    if item is not None and item < len(value.list.items):
        return value.list.items[item]
    return value


def argument_of(
    reference: values_pb2.ArgumentRef, args: Sequence[Any], kwargs: Mapping[str, Any], *, at: str
) -> Any:
    """Return the referenced argument of a call. Raises WireError if the call does not have it."""
    which = reference.WhichOneof("which")
    if which == "position" and reference.position < len(args):
        return args[reference.position]
    if which == "name" and reference.name in kwargs:
        return kwargs[reference.name]
    raise WireError(f"{at} refers to {_name_of(reference)}, which the call does not have")


def _name_of(reference: values_pb2.ArgumentRef) -> str:
    if reference.WhichOneof("which") == "name":
        return f"argument {reprlib.repr(reference.name)}"
    return f"argument {reference.position}"


def prepare_write(
    mutation: execution_pb2.Mutation,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    memory: CallerTensorMemory | None,
    *,
    at: str,
) -> tuple[Any, Any]:
    """Return the caller's array and the source to copy into it, after checking that they match.

    Raises ArgumentError if the array cannot be written to or has another shape, and WireError if
    the mutation is malformed.
    """
    what = _name_of(mutation.argument)
    value = argument_of(mutation.argument, args, kwargs, at=at)
    if mutation.HasField("item"):
        if not isinstance(value, list | tuple) or mutation.item >= len(value):
            raise WireError(f"{at} refers to item {mutation.item} of {what}, which does not exist")
        value = value[mutation.item]
        what = f"item {mutation.item} of {what}"
    contents: Any
    if mutation.HasField("value"):
        contents = tensor_from_proto(mutation.value, at=f"{at}.value", memory=memory)
        contents = contents.array if isinstance(contents, Tensor) else contents
    else:
        contents = memory.contents_of(value) if memory is not None else None
        if contents is None:
            raise WireError(f"{at} has no value, and {what} was not sent in shared memory")
    target = _writable_array(value, what)
    if tuple(target.shape) != tuple(contents.shape):
        raise ArgumentError(
            f"the operator resized {what} from {list(target.shape)} to "
            f"{list(contents.shape)}; a remote call cannot resize the caller's array",
            hint=f"pass an array of shape {list(contents.shape)}",
        )
    # "equiv" rather than "no": the caller's array may have the other byte order.
    if not np.can_cast(contents.dtype, target.dtype, casting="equiv"):
        raise WireError(f"{at} has dtype {contents.dtype}, and {what} has {target.dtype}")
    return target, contents


def check_writes(
    mutations: Sequence[execution_pb2.Mutation], writes: Sequence[tuple[Any, Any]]
) -> None:
    """Raise ArgumentError if two of the arrays to write share memory but have different contents.

    ``writes`` holds what ``prepare_write`` returned for each mutation. Copying both sources would
    overwrite one with the other.
    """
    for (first, one), (second, other) in itertools.combinations(enumerate(writes), 2):
        if not is_same_memory(one[1], other[1]) and _share_memory(one[0], other[0]):
            names = [_name_of(mutations[place].argument) for place in (first, second)]
            what = f"two items of {names[0]}" if names[0] == names[1] else " and ".join(names)
            raise ArgumentError(
                f"{what} share memory, and the operator writes to both; the interpreter received "
                "them as two separate arrays",
                hint="pass copies, or pass one remote tensor (session.put) for both",
            )


def _share_memory(one: Any, other: Any) -> bool:
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return one is other
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return True


def _writable_array(value: Any, what: str) -> Any:
    array = value.array if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray | np.generic) and find_backend(type(array)) is not None:
        return array
    if is_foreign(array) and not isinstance(array, np.ndarray):
        array = _view_foreign(array)
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            f"the operator writes to {what}, but {describe_type(value)} cannot be written to; "
            "pass a NumPy array"
        )
    if not array.flags.writeable:
        raise ArgumentError(
            f"the operator writes to {what}, but it is a read-only array",
            hint="pass a writable copy of it",
        )
    if _overlaps_itself(array):  # writing one element would overwrite another
        raise ArgumentError(
            f"the operator writes to {what}, and more than one element of it refers to a single "
            "memory location",
            hint="pass a copy of it",
        )
    return array


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Return whether elements share memory, as in a broadcast array or overlapping windows."""
    if array.flags.forc or not array.size:
        return False
    steps = sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1)
    reach = array.itemsize
    for stride, extent in steps:
        if stride < reach:
            return True
        reach += stride * (extent - 1)
    return False


def _view_foreign(value: Any) -> np.ndarray[Any, Any]:
    """Return the memory of another library's array, writable where possible."""
    view = view_by_dlpack(value)
    if not view.flags.writeable and hasattr(type(value), "__array__"):
        # NumPy before 2.1 imports DLPack read-only; __array__ may share the memory writably.
        array = np.asarray(value)
        view = array if is_same_memory(array, view) else view
    return view


def is_same_memory(value: Any, other: Any) -> bool:
    """Return whether two values are one object, or views of the same elements in memory."""
    if value is other:
        return True
    if not (isinstance(value, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    return (
        value.ctypes.data == other.ctypes.data
        and value.dtype == other.dtype
        and value.shape == other.shape
        and value.strides == other.strides
    )
