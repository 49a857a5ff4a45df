"""``custom_op``: an operator defined by a function, and its further registrations."""

from __future__ import annotations

import functools
import logging
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar, overload

from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch.errors import NoKernelError, SchemaError
from opdispatch.functionalities.autograd import make_writing_kernel
from opdispatch.keys.dispatch_key import key_of_device_type
from opdispatch.library.autocast_registration import register_autocast
from opdispatch.library.backend_selection import backend_select, has_tensors
from opdispatch.library.infer_schema import infer_schema
from opdispatch.library.jvp_registration import register_jvp
from opdispatch.library.library import Library, ops
from opdispatch.library.registration_target import DEFINITIONS, OperatorDefinition
from opdispatch.library.result_checks import result_check
from opdispatch.library.vmap_registration import register_vmap
from opdispatch.schema.function_schema import FunctionSchema, OperatorName
from opdispatch.schema.tag import Tag, tags_of
from opdispatch.schema.tag_checks import RETURNS_WRITTEN

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

LOG = logging.getLogger("opdispatch")


@overload
def custom_op(
    name: str,
    fn: None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: str | Sequence[str] | None = (),
) -> Callable[[Callable[P, R]], CustomOpDef[P, R]]: ...
@overload
def custom_op(
    name: str,
    fn: Callable[P, R],
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: str | Sequence[str] | None = (),
) -> CustomOpDef[P, R]: ...
def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str],
    device_types: str | Sequence[str] | None = None,
    schema: str | None = None,
    tags: str | Sequence[str] | None = (),
) -> Any:
    """Define the operator ``name``, such as ``"image::sobel"``, with ``fn`` as its kernel.

    Without ``fn`` it returns a decorator. The schema is that of ``infer_schema``, or ``schema``,
    such as ``"(Tensor x, float by) -> Tensor"``; ``mutates_args`` names the arguments that it
    mutates. With the tag "inplace" or "out", it returns those arguments. The kernel is for
    ``device_types``, such as ``"cpu"``; by default, for all devices except meta, for which
    ``register_fake`` declares the results. An earlier definition of the same name is replaced.
    Returns a CustomOpDef, which is called like the operator. Raises SchemaError,
    DuplicateDefinitionError if another library has defined it, and the errors of
    ``Library.define``. As ``torch.library.custom_op``.
    """

    def decorate(fn: Callable[P, R]) -> CustomOpDef[P, R]:
        return CustomOpDef(name, fn, mutates_args, device_types, schema, tags or ())

    return decorate if fn is None else decorate(fn)


class CustomOpDef(OperatorDefinition, Generic[P, R]):
    """An operator defined by ``custom_op``: callable, with methods for further registrations."""

    def __init__(
        self,
        name: str,
        fn: Callable[P, R],
        mutates_args: str | Iterable[str],
        device_types: str | Sequence[str] | None,
        schema: str | None,
        tags: str | Sequence[str],
    ) -> None:
        parsed = OperatorName.parse(name)
        if not parsed.namespace:
            raise SchemaError(f"the name of a custom operator is 'namespace::name', not {name!r}")
        self._name = name
        self._fn = fn
        self._fake: Callable[..., Any] | None = None
        self._device_types: set[str | None] = set()
        """The device types that have a kernel."""
        self._disabled: set[str | None] = set()
        self._rules: dict[type, RegistrationHandle] = {}
        if not isinstance(mutates_args, str):
            mutates_args = frozenset(mutates_args)
        if (text := schema) is None:
            text = infer_schema(fn, mutates_args=mutates_args, tags=tags)
        self._library = Library(parsed.namespace, "FRAGMENT")
        dispatcher = self._library.dispatcher
        # The owner of a transaction, such as the loader of a library, undoes it as a whole.
        is_own = not dispatcher.in_transaction
        with dispatcher.transaction():
            before = DEFINITIONS.get(name) if is_own else None
            if before is not None:
                dispatcher.undo(*reversed(before._library.handles))
            tags = (*tags_of(tags), Tag.pt2_compliant_tag)
            self._library.define(f"{name}{text}", tags=tags)
            self._schema = dispatcher.get_schema(name).schema
            # A handle would belong to this transaction's unpublished entry; packets find the
            # published one.
            self._packet = getattr(getattr(ops, parsed.namespace), parsed.unqualified_name)
            self._overload_name = parsed.overload_name or "default"
            self._tags = tags
            self._check = result_check(self._schema, tags)
            if schema is not None:
                self._check_mutated(mutates_args)
            self._library.register_fake(name, self._call_fake)
            self.register_kernel(device_types, fn)
            if self._schema.is_mutable:
                kernel = make_writing_kernel(has_derivative=Tag.out not in tags)
                self._library.impl(name, kernel, "Autograd")
            if is_own:
                DEFINITIONS[name] = self
        if before is not None:
            before._library.close()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operator, through the dispatcher."""
        result: R = self._find_op()(*args, **kwargs)
        return result

    def _find_op(self) -> OperatorHandle:
        """Return ``overload``, for calls; cached by packets."""
        op: OperatorHandle = getattr(self._packet, self._overload_name)
        return op

    def __repr__(self) -> str:
        return f"<CustomOpDef {self._schema}>"

    @property
    def overload(self) -> OperatorHandle:
        """The operator itself. Raises OperatorNotFoundError if it no longer exists."""
        return self._library.dispatcher.get_schema(self._name)

    _opoverload = overload  # PyTorch's name

    @typing.overload
    def register_kernel(
        self, device_types: str | Sequence[str] | None, fn: None = None, /
    ) -> Callable[[F], F]: ...
    @typing.overload
    def register_kernel(self, device_types: str | Sequence[str] | None, fn: F, /) -> F: ...
    def register_kernel(
        self, device_types: str | Sequence[str] | None, fn: Callable[..., Any] | None = None, /
    ) -> Any:
        """Register a kernel for device types; None means every type without a kernel of its own.

        Without ``fn`` it returns a decorator. The kernel overrides an earlier one. Its results must
        not share memory with an argument unless the schema declares it; otherwise, calls raise
        ReturnError. A call without tensors is dispatched by the argument ``device``. Raises
        SchemaError if an operator without tensor arguments has no argument ``device``, and
        DispatchKeyError.
        """
        types: Sequence[str | None] = (
            [device_types]
            if device_types is None or isinstance(device_types, str)
            else device_types
        )

        def decorate(fn: F) -> F:
            with self._library.dispatcher.transaction():
                for each in dict.fromkeys(types):
                    key = "CompositeExplicitAutograd" if each is None else key_of_device_type(each)
                    self._library.impl(self._name, self._checked(fn, each), key)
                if device_types is not None and not has_tensors(self._schema):
                    select = backend_select(self._schema, self._find_op, self._device_types)
                    self._library.impl(self._name, select, "BackendSelect", with_keyset=True)
            self._device_types.update(types)
            return fn

        return decorate if fn is None else decorate(fn)

    def register_fake(self, fn: F, /) -> F:
        """Register the operator's fake kernel: see ``register_fake``.

        It replaces an earlier one; a kernel for ``"meta"`` takes precedence over both. Warns if the
        operator has the tag "inplace" or "out", which already determines the results.
        """
        if tag := next((tag for tag in RETURNS_WRITTEN if tag in self._tags), ""):
            warnings.warn(
                f"{self._name} has the tag {tag!r}, and needs no fake kernel: this one is used in "
                "the place of that which follows from the tag",
                stacklevel=2,
            )
        self._fake = fn
        return fn

    def _call_fake(self, *args: Any, **kwargs: Any) -> Any:
        """Call the fake kernel. Raises NoKernelError if none is known."""
        fake = self._fake or _trivial_fake(self._schema, self._tags)
        if fake is None:
            raise NoKernelError(
                f"{self._name} has no fake kernel to infer results for tensors without elements",
                hint=f"register one with @opdispatch.register_fake({self._name!r})",
                operator=self._name,
                key="Meta",
            )
        return fake(*args, **kwargs)

    def register_autograd(
        self,
        backward: Callable[..., Any],
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
    ) -> None:
        """Register the operator's derivative: see ``register_autograd``."""
        self._library.register_autograd(self._name, backward, setup_context=setup_context)

    @typing.overload
    def register_jvp(
        self, jvp: None = None, /, *, setup_context: Callable[..., Any] | None = None
    ) -> Callable[[F], F]: ...
    @typing.overload
    def register_jvp(
        self, jvp: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> RegistrationHandle: ...
    def register_jvp(
        self,
        jvp: Callable[..., Any] | None = None,
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
    ) -> Any:
        """Register the forward-mode derivative, also as a decorator: see ``register_jvp``."""
        if jvp is None:
            return register_jvp(self._name, setup_context=setup_context, lib=self._library)
        return register_jvp(self._name, jvp, setup_context=setup_context, lib=self._library)

    @typing.overload
    def register_vmap(self, func: None = None, /) -> Callable[[F], F]: ...
    @typing.overload
    def register_vmap(self, func: Callable[..., Any], /) -> RegistrationHandle: ...
    def register_vmap(self, func: Callable[..., Any] | None = None, /) -> Any:
        """Register the operator's batching rule, also as a decorator: see ``register_vmap``."""
        if func is None:
            return register_vmap(self._name, lib=self._library)
        return register_vmap(self._name, func, lib=self._library)

    def register_autocast(self, device_type: str, cast_inputs: Any, /) -> None:
        """Register the casts that autocast applies to the operator: see ``register_autocast``."""
        register_autocast(self._name, device_type, cast_inputs, lib=self._library)

    @typing.overload
    def register_torch_dispatch(
        self, torch_dispatch_class: type, fn: None = None, /
    ) -> Callable[[F], F]: ...
    @typing.overload
    def register_torch_dispatch(self, torch_dispatch_class: type, fn: F, /) -> F: ...
    def register_torch_dispatch(
        self, torch_dispatch_class: type, fn: Callable[..., Any] | None = None, /
    ) -> Any:
        """Register a function that handles the operator for a mode or tensor class.

        Also usable as a decorator: see ``register_torch_dispatch``. Replaces an earlier function.
        """

        def decorate(fn: F) -> F:
            with self._library.dispatcher.transaction():
                if (before := self._rules.get(torch_dispatch_class)) is not None:
                    before.close()
                self._rules[torch_dispatch_class] = self._library.register_torch_dispatch(
                    self._name, torch_dispatch_class, fn
                )
            return fn

        return decorate if fn is None else decorate(fn)

    @contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """Enable or disable the kernel for a device type during the block, for all threads.

        While it is disabled, the function given to ``custom_op`` runs instead. Logs a warning if
        there is no such kernel, or it already is in that state.
        """
        before = device_type in self._disabled
        if device_type not in self._device_types:
            LOG.warning("%s has no kernel for %s to be switched", self._name, device_type)
        elif before is not enabled:
            word = "on" if enabled else "off"
            LOG.warning("the kernel of %s for %s is %s already", self._name, device_type, word)
        self._set_enabled(device_type, enabled)
        try:
            yield
        finally:
            self._set_enabled(device_type, not before)

    def close(self) -> None:
        """Undo the definition, and all registrations made through this object. Idempotent."""
        with self._library.dispatcher.transaction():
            if DEFINITIONS.get(self._name) is self:
                del DEFINITIONS[self._name]
            self._library.close()

    def _set_enabled(self, device_type: str, enabled: bool) -> None:
        if enabled:
            self._disabled.discard(device_type)
        else:
            self._disabled.add(device_type)

    def _check_mutated(self, mutates_args: str | Iterable[str]) -> None:
        named = {mutates_args} if isinstance(mutates_args, str) else set(mutates_args)
        written = {each.name for each in self._schema.arguments if each.is_write}
        if named != written:
            raise SchemaError(
                f"mutates_args of {self._name} has {sorted(named)}, and by its schema it writes to "
                f"{sorted(written)}: {self._schema}",
                operator=self._name,
            )

    def _checked(self, fn: Callable[..., Any], device_type: str | None) -> Callable[..., Any]:
        @functools.wraps(fn)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            chosen = self._fn if device_type in self._disabled else fn
            result = chosen(*args, **kwargs)
            self._check(args, kwargs, result)
            return result

        return kernel


def _trivial_fake(schema: FunctionSchema, tags: Sequence[str]) -> Callable[..., Any] | None:
    """Return a fake kernel if schema and tags determine the results; otherwise, return None.

    They do for an operator that returns nothing or the arguments that it mutates.
    """
    if not schema.returns:
        return lambda *args, **kwargs: None
    if "inplace" in tags:
        return lambda written, *args, **kwargs: written
    if "out" in tags:
        names = [each.name for each in schema.arguments if each.is_write]
        first = names[0] if len(names) == 1 else None
        return lambda *args, **kwargs: (
            kwargs[first] if first is not None else tuple(kwargs[name] for name in names)
        )
    return None
