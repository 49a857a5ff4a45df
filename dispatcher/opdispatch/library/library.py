"""``Library``: registers definitions and kernels, as ``torch.library.Library`` does.

lib = Library("image", "DEF")
lib.define("sobel(Tensor x, *, bool normalize=True) -> Tensor")
lib.impl("sobel", sobel_cpu, "CPU")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, Literal, Self, TypeVar, overload

from opdispatch.boxing.kernel_function import KernelFunction, fallthrough_kernel
from opdispatch.dispatch.dispatcher import Dispatcher
from opdispatch.dispatch.duplicate_definition import refuse_override
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.dispatch.registration import Registration, RegistrationHandle
from opdispatch.errors import (
    DispatchKeyError,
    LibraryError,
    RegistrationError,
    SchemaError,
)
from opdispatch.functionalities.registered_autograd import make_registered_kernel
from opdispatch.functionalities.registered_jvp import make_registered_jvp_kernel
from opdispatch.keys.dispatch_key import DispatchKey, key_of, key_of_device_type
from opdispatch.library.infer_schema import infer_schema
from opdispatch.library.ops import OpOverloadPacket, Ops
from opdispatch.library.registration_arguments import check_rule, kernel_of, namespace_of
from opdispatch.library.unload_hooks import UnloadHooks
from opdispatch.library.warmup import WarmupCall, run_or_collect
from opdispatch.local_state.caller_frames import caller_site
from opdispatch.local_state.fake_impl import fake_kernel
from opdispatch.schema.function_schema import OperatorName
from opdispatch.schema.parser import parse_schema
from opdispatch.schema.tag_checks import checked_tags

F = TypeVar("F", bound=Callable[..., Any])
Kind = Literal["DEF", "IMPL", "FRAGMENT"]

_default_dispatcher = Dispatcher()
ops = Ops(_default_dispatcher)

# Namespaces in which no library may define operators, as in PyTorch.
_RESERVED = ("prim",)
_ANY = "_"  # the namespace of a library that registers fallbacks for all operators


def default_dispatcher() -> Dispatcher:
    """Return the dispatcher of this process, which ``Library`` and ``ops`` use."""
    return _default_dispatcher


class Library:
    """Registers operators and kernels of one namespace, and undoes all registrations when closed.

    ``kind`` is "DEF" for the one library that owns the namespace ``ns``, "FRAGMENT" for one that
    adds operators to it, "IMPL" for one that only adds kernels. ``dispatch_key``, which only a
    library of kind IMPL may have, is the key of all its kernels. The library
    ``Library("_", "IMPL")`` registers fallbacks.

    Registrations stay when the object is collected; ``close()``, or the end of its ``with`` block,
    undoes them. Raises DuplicateDefinitionError if the namespace already has a DEF library,
    LibraryError for an invalid kind or namespace.
    """

    def __init__(
        self,
        ns: str,
        kind: Kind,
        dispatch_key: str | DispatchKey = "",
        *,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        if kind not in ("DEF", "IMPL", "FRAGMENT"):
            raise LibraryError(f"a library's kind is 'DEF', 'IMPL' or 'FRAGMENT', not {kind!r}")
        if ns in _RESERVED and kind != "IMPL":
            raise LibraryError(f"the namespace {ns!r} is reserved")
        if not (ns == _ANY or (ns.isidentifier() and ns.isascii())):
            raise LibraryError(f"a namespace must be an ASCII identifier, not {ns!r}")
        if ns == _ANY and kind != "IMPL":
            raise LibraryError("a library of the namespace '_' can only be of kind IMPL")
        self.ns = ns
        self.kind = kind
        self.dispatch_key = key_of(dispatch_key)
        if self.dispatch_key and kind != "IMPL":
            raise LibraryError(
                f"a library of kind {kind} has no dispatch key, and {ns!r} was given "
                f"{self.dispatch_key}",
                hint="give the key to impl(), or use a library of kind IMPL",
            )
        self.dispatcher = dispatcher or _default_dispatcher
        self._handles: list[RegistrationHandle] = []
        self._closed = False
        self._unload_hooks = UnloadHooks()
        if kind == "DEF":
            self._keep(self.dispatcher.register_library(ns, site=caller_site()))

    def define(
        self, schema: str, alias_analysis: str = "", *, tags: str | Sequence[str] = ()
    ) -> str:
        """Define the operator of a schema such as ``"sobel(Tensor x) -> Tensor"``.

        Returns its name, ``"sobel"`` or ``"sobel.overload"``. Raises SchemaError if the schema does
        not parse or contradicts a tag, DuplicateDefinitionError if the operator is defined already.
        """
        self._check_open()
        if self.kind == "IMPL":
            raise RegistrationError(
                f"the library of {self.ns!r} is of kind IMPL and defines no operators",
                hint="use kind DEF, or FRAGMENT for a second library of the namespace",
            )
        if alias_analysis not in ("", "FROM_SCHEMA", "CONSERVATIVE", "PURE_FUNCTION"):
            raise RegistrationError(f"there is no alias analysis kind {alias_analysis!r}")
        parsed = parse_schema(schema, allow_typevars=False, namespace=self.ns)
        prefix = f"{self.ns}::"
        if not parsed.name.name.startswith(prefix):
            raise RegistrationError(
                f"the library of {self.ns!r} cannot define {parsed.name}, of another namespace"
            )
        tags = checked_tags(parsed, tags) if tags else ()
        handle = self.dispatcher.register_def(
            parsed,
            site=caller_site(),
            tags=tags,
            alias_analysis=alias_analysis or "FROM_SCHEMA",
        )
        self._keep(handle)
        return str(parsed.name).removeprefix(prefix)

    def impl(
        self,
        op_name: str | OperatorHandle,
        fn: Callable[..., Any] | KernelFunction,
        dispatch_key: str | DispatchKey = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = True,
    ) -> RegistrationHandle:
        """Register a kernel of an operator for a dispatch key.

        ``op_name`` is a name in the library's namespace, or an operator. ``fn`` takes the
        operator's arguments, or is ``fallthrough_kernel``, or a KernelFunction; with
        ``with_keyset``, the dispatch key set of the call comes first. The default key is the
        library's, or CompositeImplicitAutograd; a key other than the library's raises
        DispatchKeyError. The kernel overrides an earlier one for the same key until the returned
        handle is closed; with ``allow_override=False``, it raises DuplicateDefinitionError.
        """
        self._check_open()
        name = self._qualify(op_name)
        key = self._choose_key(dispatch_key) or DispatchKey.CompositeImplicitAutograd
        if not allow_override:
            kernels = self.dispatcher.list_kernels(name)
            refuse_override(name, key, (kernel.registration for kernel in kernels))
        kernel = kernel_of(fn, with_keyset=with_keyset)
        return self._keep(self.dispatcher.register_impl(name, key, kernel, site=caller_site()))

    def fallback(
        self,
        fn: Callable[..., Any] | KernelFunction,
        dispatch_key: str | DispatchKey = "",
        *,
        with_keyset: bool = False,
    ) -> RegistrationHandle:
        """Register a kernel for a dispatch key of every operator that has none of its own.

        ``fn(op, *args, **kwargs)`` is called with the operator first, or after the call's key set
        if ``with_keyset``; or it is a KernelFunction. Only for a library of the namespace "_".
        """
        self._check_open()
        if self.ns != _ANY:
            raise RegistrationError(
                f"a fallback is for the operators of every namespace, not only for {self.ns!r}",
                hint='register it with Library("_", "IMPL")',
            )
        key = self._choose_key(dispatch_key)
        if not key:
            raise RegistrationError("a fallback needs the dispatch key that it is for")
        if isinstance(fn, KernelFunction) or fn is fallthrough_kernel:
            kernel = kernel_of(fn, with_keyset=False)
        else:
            kernel = KernelFunction.from_fallback(fn, with_keyset=with_keyset)
        return self._keep(self.dispatcher.register_fallback(key, kernel, site=caller_site()))

    def register_autograd(
        self,
        op_name: str | OperatorHandle,
        backward: Callable[..., Any],
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
    ) -> RegistrationHandle:
        """Register the derivative of an operator: see ``opdispatch.register_autograd``."""
        name = self._qualify(op_name)
        schema = self.dispatcher.get_schema(name).schema
        kernel = make_registered_kernel(schema, backward, setup_context)
        return self.impl(op_name, kernel, "Autograd")

    def register_jvp(
        self,
        op_name: str | OperatorHandle,
        jvp: Callable[..., Any],
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
    ) -> RegistrationHandle:
        """Register the forward-mode derivative of an operator: see ``opdispatch.register_jvp``."""
        name = self._qualify(op_name)
        schema = self.dispatcher.get_schema(name).schema
        kernel = make_registered_jvp_kernel(schema, jvp, setup_context)
        return self.impl(op_name, kernel, "FuncTorchGradWrapper")

    def register_torch_dispatch(
        self, op_name: str | OperatorHandle, torch_dispatch_class: type, func: Callable[..., Any]
    ) -> RegistrationHandle:
        """Register a mode's handler of an operator: see ``opdispatch.register_torch_dispatch``."""
        self._check_open()
        check_rule(torch_dispatch_class, func)
        registration = Registration(
            "dispatch_rule",
            caller_site(),
            name=self._qualify(op_name),
            rule_class=torch_dispatch_class,
            rule=func,
        )
        return self._keep(self.dispatcher.register(registration))

    _register_torch_dispatch_rule = register_torch_dispatch  # PyTorch's name

    def register_fake(
        self, op_name: str | OperatorHandle, fn: Callable[..., Any], *, allow_override: bool = True
    ) -> RegistrationHandle:
        """Register an operator's fake kernel.

        See ``opdispatch.register_fake``. Raises RegistrationError for an operator that is not
        defined, or has a kernel for CompositeImplicitAutograd, which runs on any tensors.
        """
        name = self._qualify(op_name)
        if (op := self.dispatcher.find_schema(name)) is None:
            missing = self.dispatcher.not_found(str(name))
            raise RegistrationError(missing.message, hint=missing.hint, **missing.facts)
        if op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
            raise RegistrationError(
                f"{name} has a CompositeImplicitAutograd kernel, which runs for fake tensors, too; "
                "a fake kernel would replace it",
                hint="register fake kernels for the operators that it calls",
                operator=str(name),
            )
        kernel = fake_kernel(str(name), fn)
        return self.impl(op_name, kernel, "Meta", allow_override=allow_override)

    def _register_fake(
        self,
        op_name: str,
        fn: Callable[..., Any],
        _stacklevel: int = 1,
        *,
        allow_override: bool = True,
    ) -> None:
        """Call ``register_fake``; PyTorch's private name, whose stack level is not needed."""
        self.register_fake(op_name, fn, allow_override=allow_override)

    @property
    def handles(self) -> Sequence[RegistrationHandle]:
        """The handles of the library's registrations, in the order of registration."""
        return tuple(self._handles)

    def close(self) -> None:
        """Undo everything the library has registered, in one publication. Idempotent.

        Then the functions passed to ``on_unload`` are called. A closed library raises
        RegistrationError for further registrations.
        """
        self._closed = True
        self.dispatcher.undo(*reversed(self._handles))
        self._handles.clear()
        self._unload_hooks.run()

    def on_unload(self, fn: Callable[[], Any]) -> Callable[[], Any]:
        """Call ``fn()`` once when the library is unloaded: to close files, or to release a device.

        In process, ``fn`` runs when the library is closed. In a service, it runs after the library
        was unloaded or replaced by a new version and its last call has ended, and when the
        interpreter shuts down normally, but not when it crashes. A service runs it in a separate
        thread, for a limited time. Errors are logged. Several functions run in reverse order of
        registration. Returns ``fn``, so it works as a decorator. Raises RegistrationError if the
        library is closed.
        """
        self._check_open()
        if not self._unload_hooks.add(fn):
            raise RegistrationError(f"the library of {self.ns!r} has been unloaded")
        return fn

    def warmup(self, op_name: str | OperatorHandle, /, *args: Any, **kwargs: Any) -> None:
        """Call an operator before the library serves calls: to compile a kernel or fill a cache.

        ``op_name`` is a name in the library's namespace, or an operator. In process, the call runs
        immediately. In a service, it runs after the module has been imported, in each interpreter
        that loads the library, using the registrations about to be published; an error makes the
        load fail without any change. The result is discarded. Raises RegistrationError if the
        library is closed, and OperatorNotFoundError.
        """
        self._check_open()
        name = self._qualify(op_name)

        def call(*args: Any, **kwargs: Any) -> None:
            # Looked up when it runs: a kernel may be registered after the call is requested.
            packet = OpOverloadPacket(self.dispatcher, name.name)
            overload = name.overload_name
            (getattr(packet, overload) if overload else packet)(*args, **kwargs)

        run_or_collect(WarmupCall(str(name), call, args, kwargs))

    _destroy = close  # PyTorch's name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        key = f", dispatch_key={self.dispatch_key}" if self.dispatch_key else ""
        return f"Library(kind={self.kind}, ns={self.ns}{key})"

    def _check_open(self) -> None:
        if self._closed:
            raise RegistrationError(f"the library of {self.ns!r} has been closed")

    def _keep(self, handle: RegistrationHandle) -> RegistrationHandle:
        self._handles.append(handle)
        # another thread closed it meanwhile, perhaps without seeing this registration
        if self._closed:
            handle.close()
            self._check_open()
        return handle

    def _choose_key(self, dispatch_key: str | DispatchKey) -> DispatchKey:
        """Return the given key, by default the library's; raise DispatchKeyError if they differ."""
        key = key_of(dispatch_key)
        if key and self.dispatch_key and key is not self.dispatch_key:
            raise DispatchKeyError(
                f"the library of {self.ns!r} is for {self.dispatch_key}, and cannot register "
                f"a kernel for {key}",
                hint="leave out one of the two keys",
                key=str(key),
            )
        return key or self.dispatch_key

    def _qualify(self, op_name: str | OperatorHandle) -> OperatorName:
        if isinstance(op_name, OperatorHandle):
            name = op_name.name
        else:
            name = OperatorName.parse(op_name if "::" in op_name else f"{self.ns}::{op_name}")
        if name.namespace != self.ns or self.ns == _ANY:
            raise RegistrationError(
                f"the library of {self.ns!r} cannot implement {name}, of another namespace"
            )
        return name


@overload
def define(
    qualname: str, schema: str, *, lib: Library | None = None, tags: str | Sequence[str] = ()
) -> None: ...
@overload
def define(lib: Library, schema: str, alias_analysis: str = "") -> Callable[[F], F]: ...
@singledispatch
def define(
    qualname: str | Library,
    schema: str,
    *,
    lib: Library | None = None,
    tags: str | Sequence[str] = (),
) -> Any:
    """Define an operator: ``define("image::sobel", "(Tensor x) -> Tensor")``.

    The definition is undone with ``lib``; without one, it is permanent. ``@define(lib, schema,
    alias_analysis="")`` is a decorator, which also registers the function as the kernel for the
    library's key, or CompositeImplicitAutograd. Raises the errors of ``Library.define``.
    """
    namespace = namespace_of(qualname)
    if not schema.startswith("("):
        raise SchemaError(
            f"the schema of {qualname} has no name of its own, and looks like "
            f"'(Tensor x) -> Tensor', not {schema!r}"
        )
    (lib or Library(namespace, "FRAGMENT")).define(f"{qualname}{schema}", tags=tags)


@define.register  # type: ignore[attr-defined, untyped-decorator]  # overloads hide it
def _(lib: Library, schema: str, alias_analysis: str = "") -> Callable[[F], F]:
    def decorate(fn: F) -> F:
        name = lib.define(schema, alias_analysis)
        lib.impl(name, fn)
        return fn

    return decorate


@overload
def impl(
    qualname: str,
    types: str | Sequence[str],
    func: None = None,
    *,
    lib: Library | None = None,
) -> Callable[[F], F]: ...
@overload
def impl(
    qualname: str, types: str | Sequence[str], func: F, *, lib: Library | None = None
) -> F: ...
@overload
def impl(
    lib: Library,
    name: str | OperatorHandle,
    dispatch_key: str | DispatchKey = "",
    *,
    with_keyset: bool = False,
) -> Callable[[F], F]: ...
@singledispatch
def impl(
    qualname: str | Library,
    types: str | Sequence[str],
    func: Callable[..., Any] | None = None,
    *,
    lib: Library | None = None,
) -> Any:
    """Register a kernel: ``@impl("image::sobel", "cpu")``, or directly by passing ``func``.

    ``types`` are device types such as "cuda", "default" for all of them, or dispatch keys. The
    registration is undone with ``lib``; without one, it is permanent. ``@impl(lib, "sobel",
    "CPU")`` is a decorator for one dispatch key of a library. Raises the errors of
    ``Library.impl``.
    """
    keys = dict.fromkeys(map(key_of_device_type, (types,) if isinstance(types, str) else types))
    namespace = namespace_of(qualname)

    def decorate(fn: F) -> F:
        library = lib or Library(namespace, "FRAGMENT")
        with library.dispatcher.transaction():
            for key in keys:
                library.impl(str(qualname), fn, key)
        return fn

    return decorate if func is None else decorate(func)


@impl.register  # type: ignore[attr-defined, untyped-decorator]  # as above
def _(
    lib: Library,
    name: str | OperatorHandle,
    dispatch_key: str | DispatchKey = "",
    *,
    with_keyset: bool = False,
) -> Callable[[F], F]:
    def decorate(fn: F) -> F:
        lib.impl(name, fn, dispatch_key, with_keyset=with_keyset)
        return fn

    return decorate


__all__ = [
    "Library",
    "default_dispatcher",
    "define",
    "fallthrough_kernel",
    "impl",
    "infer_schema",
    "ops",
]
