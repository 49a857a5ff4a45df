"""Library: what a kernel library writes."""

import gc
import sys

import numpy as np
import pytest

import opdispatch
from opdispatch import (
    DispatchKey,
    DispatchKeyError,
    DispatchKeySet,
    DuplicateDefinitionError,
    KernelTypeError,
    Library,
    LibraryError,
    OperatorName,
    OperatorNotFoundError,
    RegistrationError,
    Tensor,
    default_dispatcher,
    define,
    fallthrough_kernel,
    impl,
    ops,
)
from opdispatch.library import _scoped_library

pytestmark = pytest.mark.smoke

K = DispatchKey
X = np.ones(2)


def call(dispatcher, name, *args, **kwargs):
    return dispatcher.resolve_overload(f"t::{name}", args, kwargs)(*args, **kwargs)


# -- the three kinds -----------------------------------------------------------------------------


def test_a_def_library_owns_its_namespace(library, lib):
    with pytest.raises(
        DuplicateDefinitionError, match="the namespace 't' has a library of kind DE"
    ):
        library("t", "DEF")
    lib.close()
    assert library("t", "DEF").ns == "t"


def test_a_fragment_adds_operators_to_a_namespace_owned_or_not(library, lib, dispatcher):
    assert library("t", "FRAGMENT").define("f(Tensor x) -> Tensor") == "f"
    assert library("free", "FRAGMENT").define("f(Tensor x) -> Tensor") == "f"
    assert [str(name) for name in dispatcher.operators()] == ["t::f", "free::f"]


def test_an_impl_library_adds_kernels_only(library, lib, dispatcher):
    lib.define("f(Tensor x) -> str")
    kernels = library("t", "IMPL", "CPU")
    with pytest.raises(RegistrationError, match="is of kind IMPL and defines no operators"):
        kernels.define("g(Tensor x) -> Tensor")
    kernels.impl("f", lambda x: "CPU")
    assert call(dispatcher, "f", X) == "CPU"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("t", "OTHER"), "a library's kind is 'DEF', 'IMPL' or 'FRAGMENT', not 'OTHER'"),
        (("prim", "DEF"), "the namespace 'prim' is reserved"),
        (("prim", "FRAGMENT"), "the namespace 'prim' is reserved"),
        (("not a name", "DEF"), "a namespace must be an ASCII identifier, not 'not a name'"),
        (("", "DEF"), "a namespace must be an ASCII identifier, not ''"),
        (("ünicode", "DEF"), "a namespace must be an ASCII identifier, not 'ünicode'"),
        (("_", "DEF"), "a library of the namespace '_' can only be of kind IMPL"),
        (("_", "FRAGMENT"), "a library of the namespace '_' can only be of kind IMPL"),
        (
            ("t", "DEF", "CPU"),
            "a library of kind DEF has no dispatch key, and 't' was given CPU "
            "(give the key to impl(), or use a library of kind IMPL)",
        ),
        (
            ("t", "FRAGMENT", DispatchKey.CompositeExplicitAutograd),
            "a library of kind FRAGMENT has no dispatch key, and 't' was given "
            "CompositeExplicitAutograd "
            "(give the key to impl(), or use a library of kind IMPL)",
        ),
    ],
)
def test_a_library_that_cannot_be_is_refused(library, dispatcher, args, message):
    with pytest.raises(LibraryError) as caught:
        library(*args)
    assert str(caught.value) == message
    assert dispatcher.libraries() == {}


def test_an_unknown_key_is_refused(library):
    with pytest.raises(DispatchKeyError, match="there is no dispatch key 'GPU'"):
        library("t", "IMPL", "GPU")


@pytest.mark.parametrize("kind", ["DEF", "FRAGMENT", "IMPL"])
def test_undefined_is_no_dispatch_key_of_a_library(library, kind):
    assert library("t", kind, "Undefined").dispatch_key is DispatchKey.Undefined


def test_a_scoped_library_goes_at_the_end_of_its_block(dispatcher):
    with _scoped_library("scoped", "DEF", dispatcher=dispatcher) as lib:
        lib.define("f() -> ()")
        assert dispatcher.find_schema("scoped::f")
    assert dispatcher.find_schema("scoped::f") is None


def test_a_library_prints_as_in_pytorch(library, lib):
    assert repr(lib) == "Library(kind=DEF, ns=t)"
    assert repr(library("t", "IMPL", "CPU")) == "Library(kind=IMPL, ns=t, dispatch_key=CPU)"


# -- impl ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["CPU", K.CPU])
def test_a_kernel_is_registered_for_a_key_by_name_or_value(lib, dispatcher, caller, key):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "CPU", key)
    assert call(dispatcher, "f", X) == "CPU"


def test_without_a_key_the_librarys_is_meant_and_without_that_the_composite(library, dispatcher):
    lib = library("t", "FRAGMENT")
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x)
    library("t", "IMPL", "CUDA").impl("f", lambda x: x)
    keys = [str(kernel.key) for kernel in dispatcher.get_schema("t::f").kernels()]
    assert keys == ["CUDA", "CompositeImplicitAutograd"]


def test_a_key_other_than_the_librarys_is_refused(library, lib, dispatcher):
    lib.define("f(Tensor x) -> Tensor")
    cuda = library("t", "IMPL", "CUDA")
    with pytest.raises(DispatchKeyError, match="the library of 't' is for CUDA, and cannot"):
        cuda.impl("f", lambda x: x, "CPU")
    assert dispatcher.list_kernels(dispatcher.get_schema("t::f").name) == []
    cuda.impl("f", lambda x: x, "CUDA")
    everywhere = library("_", "IMPL", "XLA")
    with pytest.raises(DispatchKeyError, match="the library of '_' is for XLA, and cannot"):
        everywhere.fallback(lambda op, *args: args, "CPU")


@pytest.mark.parametrize("name", ["f.wide", "t::f.wide"])
def test_the_name_may_have_the_namespace(lib, dispatcher, name):
    lib.define("f.wide(Tensor x) -> str")
    lib.impl(name, lambda x: "wide", "CPU")
    assert call(dispatcher, "f.wide", X) == "wide"


def test_an_operator_may_stand_for_its_name(lib, dispatcher):
    lib.define("f.wide(Tensor x) -> str")
    lib.impl(dispatcher.get_schema("t::f.wide"), lambda x: "wide", "CPU")
    assert call(dispatcher, "f.wide", X) == "wide"


def test_a_kernel_may_come_before_its_definition(lib, library, dispatcher):
    library("t", "IMPL").impl("f", lambda x: "early", "CPU")
    lib.define("f(Tensor x) -> str")
    assert call(dispatcher, "f", X) == "early"


def test_a_kernel_for_another_key_than_the_librarys_is_refused(library, lib, dispatcher):
    kernels = library("t", "IMPL", "CPU")
    with pytest.raises(
        RegistrationError, match="is for CPU, and cannot register a kernel for CUDA"
    ):
        kernels.impl("f", lambda x: x, "CUDA")
    assert dispatcher.operators() == []
    kernels.impl("f", lambda x: "same key", "CPU")
    kernels.impl("g", lambda x: "no key", "Undefined")
    names = [OperatorName("t::f"), OperatorName("t::g")]
    assert [k.key for name in names for k in dispatcher.list_kernels(name)] == [K.CPU, K.CPU]


def test_a_second_kernel_for_a_key_covers_the_first(lib, dispatcher, caller):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "old", "CPU")
    op = dispatcher.get_schema("t::f")
    assert op(X) == "old"
    with lib.impl("f", lambda x: "new", "CPU"):
        assert op(X) == "new"
    assert op(X) == "old"


def test_a_library_can_refuse_to_cover_a_kernel(lib, dispatcher, caller):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "old", "CPU", allow_override=False)
    with pytest.raises(
        DuplicateDefinitionError, match="t::f has a kernel for CPU already"
    ) as error:
        lib.impl("f", lambda x: "new", "CPU", allow_override=False)
    assert error.value.hint == "allow_override=True covers it"
    assert call(dispatcher, "f", X) == "old"


def test_a_kernel_that_covers_another_is_not_warned_of(lib, dispatcher, caller, recwarn):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "old", "CPU")
    lib.impl("f", lambda x: "new", "CPU")
    assert call(dispatcher, "f", X) == "new"
    assert not recwarn.list


def test_overrides_are_undone_in_any_order(library, lib, dispatcher, caller):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "one", "CPU")
    op = dispatcher.get_schema("t::f")
    two, three = library("t", "IMPL", "CPU"), library("t", "IMPL", "CPU")
    two.impl("f", lambda x: "two", allow_override=True)
    three.impl("f", lambda x: "three", allow_override=True)
    assert op(X) == "three"
    two.close()
    assert op(X) == "three"
    three.close()
    assert op(X) == "one"


def test_a_kernel_may_take_the_keys_of_the_call(lib, dispatcher, caller):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda keys, x: str(keys), "CPU", with_keyset=True)
    assert call(dispatcher, "f", X) == "DispatchKeySet(CPU)"


def test_a_fallthrough_kernel_passes_calls_on(lib, dispatcher, caller):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", fallthrough_kernel, "AutogradCPU")
    lib.impl("f", lambda x: "CPU", "CPU")
    assert call(dispatcher, "f", Tensor(X)) == "CPU"
    assert repr(fallthrough_kernel) == "fallthrough_kernel"
    with pytest.raises(NotImplementedError):
        fallthrough_kernel(X)


@pytest.mark.parametrize("fn", [None, 3, "f"])
def test_a_kernel_must_be_callable(lib, dispatcher, fn):
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(KernelTypeError, match="a kernel must be callable"):
        lib.impl("f", fn, "CPU")
    assert dispatcher.get_schema("t::f").kernels() == []


# -- decorators ----------------------------------------------------------------------------------


def test_functions_are_registered_by_decorators(lib, dispatcher, caller):
    @define(lib, "f(Tensor x) -> str")
    def f(x):
        return "composite"

    @impl(lib, "f", "CUDA")
    def f_cuda(x):
        return "CUDA"

    @impl(lib, "f", "Tracer", with_keyset=True)
    def f_traced(keys, x):
        return str(keys)

    x = Tensor(X, keys=DispatchKeySet.of(K.Tracer))
    assert (f(X), f_cuda(X)) == ("composite", "CUDA"), "functions stay what they are"
    assert call(dispatcher, "f", X) == "composite"
    assert call(dispatcher, "f", Tensor(X, keys=DispatchKeySet.of(K.CUDA))) == "CUDA"
    assert call(dispatcher, "f", x) == "DispatchKeySet(Tracer)"


def test_operators_are_defined_and_implemented_by_their_full_names(library, dispatcher, caller):
    lib = library("t", "FRAGMENT")
    define("t::f", "(Tensor x) -> str", lib=lib, tags="core")

    @impl("t::f", ("cpu", "cuda", "AutogradCPU"), lib=lib)
    def devices(x):
        return "devices"

    assert impl("t::f", "default", lambda x: "default", lib=lib)(X) == "default"
    handle = dispatcher.get_schema("t::f")
    assert handle.tags == ["core"]
    assert [str(kernel.key) for kernel in handle.kernels()] == [
        *("CPU", "CUDA", "AutogradCPU", "CompositeExplicitAutograd")
    ]
    assert (handle(X), devices(X)) == ("devices", "devices")
    lib.close()
    assert dispatcher.operators() == []


def test_a_kernel_for_several_devices_is_registered_for_all_or_none(library, dispatcher):
    lib = library("t", "FRAGMENT")
    define("t::f", "(Tensor x) -> str", lib=lib)
    with pytest.raises(DispatchKeyError):
        impl("t::f", ("cpu", "gpu"), lambda x: "both", lib=lib)
    assert dispatcher.get_schema("t::f").kernels() == []
    impl("t::f", ("cpu", "cuda"), lambda x: "both", lib=lib)
    keys = [str(kernel.key) for kernel in dispatcher.get_schema("t::f").kernels()]
    assert keys == ["CPU", "CUDA"]


def test_without_a_library_full_names_are_those_of_the_process():
    define("t_full_names::f", "(Tensor x) -> Tensor")
    gc.collect()
    impl("t_full_names::f", "cpu", lambda x: x)
    assert ops.t_full_names.f(X) is X


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda: define("f", "(Tensor x) -> Tensor"), "looks like 'namespace::name', not 'f'"),
        (lambda: define(3, "(Tensor x) -> Tensor"), "looks like 'namespace::name', not 3"),
        (lambda: define("t::f", "f(Tensor x) -> Tensor"), "the schema of t::f has no name"),
        (lambda: impl("t::f", "gpu", lambda x: x), "there is no dispatch key 'gpu'"),
        (lambda: impl("f", "cpu", lambda x: x), "looks like 'namespace::name', not 'f'"),
    ],
)
def test_a_full_name_device_or_schema_that_cannot_be_is_refused(register, message):
    with pytest.raises(ValueError, match=message):
        register()


# -- the default dispatcher ----------------------------------------------------------------------


def test_a_library_registers_in_the_dispatcher_of_the_process_where_ops_finds_it():
    dispatcher = default_dispatcher()
    with Library("unit_test", "DEF") as lib:
        assert lib.dispatcher is dispatcher
        lib.define("add(Tensor x, Tensor y) -> Tensor")
        lib.impl("add", lambda x, y: x + y, "CPU")
        np.testing.assert_array_equal(ops.unit_test.add(X, X), [2, 2])
    with pytest.raises(OperatorNotFoundError):
        _ = ops.unit_test.add
    assert dispatcher.check_invariants() == []


def test_the_place_of_a_registration_is_the_users_file_not_ours(lib, dispatcher):
    @define(lib, "f(Tensor x) -> Tensor")
    def f(x):
        return x

    op = dispatcher.get_schema("t::f")
    [kernel] = op.kernels()
    assert op.defined_at.rpartition(":")[0] == kernel.registration.site.rpartition(":")[0]
    assert op.defined_at.startswith(__file__)
    library_file = sys.modules["opdispatch.library.library"].__file__
    assert library_file not in op.dump_table()


def test_the_package_exports_what_a_library_needs():
    assert opdispatch.Library is Library
    assert opdispatch.ops is ops
    assert opdispatch.OpOverload is opdispatch.OperatorHandle
