"""A kernel's exception arrives as a KernelError that is of the same built-in classes."""

import builtins
import copy
import io
import pickle
import traceback

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch.errors import ArgumentError, SchemaError
from opdispatch_server.worker.execution.raised_errors import error_of_kernel
from opdispatch_wire.errors import InterpreterDiedError, KernelError
from opdispatch_wire.kernel_errors import kernel_error
from opdispatch_wire.status import error_from_status, status_from_error

FACTS = {"operator": "image::f", "interpreter": "worker-1"}

EXCEPTIONS = sorted(
    (
        found
        for found in vars(builtins).values()
        if isinstance(found, type)
        and issubclass(found, BaseException)
        and found is not MemoryError  # of which a DeviceMemoryError is made
    ),
    key=lambda cls: cls.__name__,
)
# They end loops, generators and processes, or are taken apart by ``except*``.
NEVER = (
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
    BaseExceptionGroup,
)


def sent(error, passes=1):
    """Send the error of a kernel to a client, past as many processes."""
    received = error_of_kernel(error, "the kernel", FACTS)
    for _ in range(passes):
        received = error_from_status(status_from_error(received))
    return received


def make(cls):
    match cls.__name__:
        case "UnicodeDecodeError":
            return cls("utf-8", b"\xff", 0, 1, "invalid start byte")
        case "UnicodeEncodeError":
            return cls("ascii", "é", 0, 1, "ordinal not in range")
        case "UnicodeTranslateError":
            return cls("é", 0, 1, "not there")
        case "BaseExceptionGroup" | "ExceptionGroup":
            return cls("several", [ValueError("one")])
    return cls("it broke")


@pytest.mark.parametrize("cls", EXCEPTIONS, ids=lambda cls: cls.__name__)
def test_error_is_of_the_built_in_class_unless_that_would_end_something(cls):
    original = make(cls)
    error = sent(original, passes=2)
    assert isinstance(error, KernelError)
    if issubclass(cls, NEVER) or cls in (Exception, BaseException):
        assert type(error) is KernelError
    else:
        assert isinstance(error, cls)
    assert str(original) in str(error)
    assert error.facts["exception_type"] == type(original).__name__
    assert sent(make(cls)).__class__ is error.__class__  # made once
    assert repr(error) == f"KernelError({str(error)!r})"


@pytest.mark.parametrize("cls", EXCEPTIONS, ids=lambda cls: cls.__name__)
def test_error_is_copied_pickled_and_printed_whole(cls):
    error = sent(make(cls))
    error.add_note("a note")
    for other in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert (str(other), other.facts, other.args) == (str(error), error.facts, error.args)
        assert other.__notes__ == error.__notes__
    printed = "".join(traceback.format_exception(error))
    assert "the kernel raised " in printed
    assert printed.count("a note") == 1


def test_error_of_two_built_in_classes_is_of_both():
    """As NumPy's AxisError, which is also a library's own class: that name is not looked for."""
    error = sent(np.exceptions.AxisError("axis 3 is out of bounds"))
    assert isinstance(error, ValueError)
    assert isinstance(error, IndexError)
    assert error.facts["exception_type"] == "AxisError"
    assert isinstance(sent(io.UnsupportedOperation("fileno")), OSError)
    assert isinstance(sent(io.UnsupportedOperation("fileno")), ValueError)
    assert isinstance(sent(SchemaError("no schema")), ValueError)
    assert isinstance(sent(ArgumentError("no argument")), TypeError)


def test_error_of_a_librarys_class_with_a_built_in_name_is_not_of_the_built_in():
    impostor = type("ValueError", (Exception,), {})
    assert type(sent(impostor("no value"))) is KernelError


def test_error_of_a_nested_call_is_of_the_built_in_class_everywhere():
    inner = sent(FileNotFoundError(2, "No such file", "/data"))
    outer = sent(inner)
    assert isinstance(outer, FileNotFoundError)
    assert outer.errno == 2
    assert isinstance(sent(InterpreterDiedError("gone")), ConnectionError)


@pytest.mark.parametrize(
    ("original", "attributes"),
    [
        (FileNotFoundError(2, "No such file", "/data"), ("errno", "strerror", "filename")),
        (BlockingIOError(11, "again"), ("errno", "strerror", "filename")),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ("encoding", "start", "end", "reason")),
        (UnicodeEncodeError("ascii", "é", 0, 1, "bad"), ("encoding", "start", "end", "reason")),
        (ImportError("no", name="cv2", path="/cv2.so"), ("name", "path")),
        (SyntaxError("bad", ("f.py", 3, 1, "x")), ("filename", "lineno")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_attributes_that_programs_read_are_those_of_the_original(original, attributes):
    for error in (
        sent(original),
        copy.copy(sent(original)),
        pickle.loads(pickle.dumps(sent(original))),
    ):
        for name in attributes:
            assert getattr(error, name) == getattr(original, name)


def test_resource_that_a_kernel_has_used_up_is_no_matter_of_a_process_that_passes_it_on():
    error = sent(OSError(24, "Too many open files"), passes=3)
    assert isinstance(error, KernelError)
    assert error.errno == 24


class Textless:
    def __str__(self):
        raise RuntimeError("no text")


class OddError(OSError):
    @property
    def errno(self):
        raise RuntimeError("no number")


@pytest.mark.parametrize(
    ("original", "cls"), [(ValueError(Textless()), ValueError), (OddError("odd"), OSError)]
)
def test_error_that_cannot_be_shown_arrives_all_the_same(original, cls):
    error = sent(original)
    assert isinstance(error, KernelError)
    assert isinstance(error, cls)


def test_unicode_error_has_an_object_of_its_type():
    assert sent(make(UnicodeDecodeError)).object == b""
    assert sent(make(UnicodeEncodeError)).object == ""


def test_key_error_prints_its_message_without_quotes():
    assert str(sent(KeyError("x"))) == "the kernel raised KeyError: 'x'"


def test_error_names_its_cause_and_keeps_its_notes():
    try:
        try:
            raise KeyError("x")
        except KeyError as cause:
            raise ValueError("no such picture") from cause
    except ValueError as caught:
        caught.add_note("look into the catalogue")
        error = sent(caught)
    assert str(error) == ("the kernel raised ValueError: no such picture, caused by KeyError: 'x'")
    assert error.facts["exception_cause"] == "KeyError: 'x'"
    assert "look into the catalogue" in error.facts["traceback"]
    assert "KeyError: 'x'\n\nThe above exception was the direct cause" in error.facts["traceback"]
    assert "look into the catalogue" in "".join(traceback.format_exception(error))


@given(st.text(max_size=60), st.dictionaries(st.text(max_size=20), st.text(max_size=20)))
def test_no_fact_of_a_peer_makes_anything_but_a_kernel_error(bases, facts):
    error = kernel_error("it broke", facts={**facts, "exception_bases": bases})
    assert isinstance(error, KernelError)
    assert error.facts["exception_bases"] == bases


@pytest.mark.parametrize(
    "bases",
    [
        *("StopIteration", "SystemExit", "KeyboardInterrupt", "ExceptionGroup", "Exception"),
        *("OSError,ImportError", "os.system", "KernelError", "object", ",", "ValueError" * 1000),
    ],
)
def test_names_that_are_not_in_the_table_are_left_out(bases):
    assert type(kernel_error("it broke", facts={"exception_bases": bases})) is KernelError


@pytest.mark.parametrize("text", ["٣", "--1", "9" * 500, "", "0x1"])
def test_numbers_that_are_none_are_left_out(text):
    facts = {"exception_bases": "OSError", "exception_errno": text}
    assert kernel_error("it broke", facts=facts).errno in (None, 3)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.__setitem__(0, 1),
        lambda x: np.add(x, x, out=x),
        lambda x: x.sort(),
        lambda x: x.fill(1),
        lambda x: np.random.default_rng(0).shuffle(x),
        lambda x: x.setflags(write=True),
        lambda x: memoryview(x).__setitem__(0, 1.0),
    ],
)
def test_write_to_a_read_only_array_says_how_to_declare_it(write):
    x = np.frombuffer(bytes(24))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - NumPy has several
        write(x)
    assert 'declare it, as in "Tensor(a!) x", or write to a copy' in str(sent(caught.value))
    assert sent(ValueError("no picture")).hint == ""
