"""Calls of an asyncio session: operators, with local or remote values, and programs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from opdispatch_client.aio.program import AsyncProgram, AsyncRunProgram, as_program
from opdispatch_client.aio.remote_tensor import AsyncRemoteTensor
from opdispatch_client.aio.submission import AsyncGradients, AsyncSubmission, split_gradients
from opdispatch_client.call_options import (
    KEEPING_OPTIONS,
    SESSIONS_OPTIONS,
    CallOptions,
    deadline_in,
)
from opdispatch_client.listings import TraceLine
from opdispatch_client.operator_call import OperatorCall
from opdispatch_client.operator_catalog import OperatorCatalog
from opdispatch_client.remote_ops import Calls, RemoteOps
from opdispatch_client.request_arguments import as_list, check_callable, check_flag
from opdispatch_wire.caller_tensors import OnTransfer


class AsyncCallingSession(AsyncSubmission):
    """The methods of an asyncio session for calls, remote tensors and programs."""

    _catalog: OperatorCatalog

    def with_options(
        self,
        *,
        retry: bool | None = None,
        remote: bool = False,
        timeout: float | None = None,
        on_progress: OnTransfer | None = None,
    ) -> Calls[Coroutine[Any, Any, Any]]:
        """Return ``call``, ``trace`` and ``ops`` with other options than the session's.

        A call may take `timeout` seconds, counted from when it is made, instead of the session's;
        ``math.inf`` means no limit. After that it raises DeadlineExceededError. Nested calls by its
        kernel inherit the remaining time. A single operator has the same method:
        ``session.ops.image.sobel.with_options(timeout=0.5)(picture)``.

        With ``retry=False``, ``session.with_options(retry=False).ops.bank.quote(x)`` raises
        InterpreterDiedError instead of running again when its interpreter dies. An operator that
        writes to its arguments is never retried. With `remote`, results stay in the interpreter, as
        with ``session.call(..., remote=True)``.

        `on_progress` is called with a TransferProgress after each chunk of a large tensor that was
        sent or received; tensors are only chunked over a gRPC stream. It is called in the event
        loop, and not for calls with `remote`.
        """
        return self._calls_with(
            CallOptions.checked(
                retry=retry, remote=remote, timeout=timeout, on_progress=on_progress
            )
        )

    @property
    def ops(self) -> RemoteOps[Coroutine[Any, Any, Any]]:
        """The daemon's operators: ``await session.ops.namespace.name(...)``."""
        return self._calls_with(SESSIONS_OPTIONS).ops

    def call(
        self, operator: str, /, *args: Any, remote: bool = False, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call an operator, such as ``"image::sobel"`` or ``"math::add.Scalar"``.

        Returns the results that the schema declares: None, one value, or a tuple; tensors are NumPy
        arrays. Arguments that the operator writes to are updated in place. Raises
        OperatorNotFoundError, ArgumentError, NoKernelError, KernelError if the kernel raised, and
        WireError for an argument that cannot be sent.

        With `remote`, tensors among the results stay in the interpreter and are returned as
        AsyncRemoteTensors. An argument of the operator that is itself named ``remote`` can be
        passed through ``ops``. Further options of a call, such as a timeout, are set with
        ``with_options``.
        """
        options = SESSIONS_OPTIONS
        if remote is not False and (remote is True or check_flag(remote, "remote")):
            options = KEEPING_OPTIONS
        return self._call_operator(operator, args, kwargs, options)

    async def trace(
        self, operator: str, /, *args: Any, **kwargs: Any
    ) -> tuple[Any, list[TraceLine]]:
        """Call an operator; return the result and the kernels visited, in order of entry."""
        return await self._trace(operator, args, kwargs, SESSIONS_OPTIONS)

    async def _trace(
        self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions
    ) -> tuple[Any, list[TraceLine]]:
        retry = self._endpoint.retry if options.retry is None else options.retry
        call = OperatorCall(
            operator, args, kwargs, retry=retry, trace=True, deadline=options.deadline
        )
        result: tuple[Any, list[TraceLine]] = await self._remote.make(call)
        return result

    async def put(
        self,
        array: Any,
        on: str | None = None,
        *,
        device: str | None = None,
        timeout: float | None = None,
    ) -> AsyncRemoteTensor:
        """Put a copy of an array into an interpreter: into the one named `on`, or any.

        There it is on the array's own device, or on `device`, one of the interpreters' devices,
        such as ``"cuda:0"``. Without `on`, a call with it moves it to an interpreter that holds the
        operator's library. Raises RemoteLimitError, InterpreterNotFoundError, DeviceError, and
        WireError for anything but an array. It may take `timeout` seconds, instead of the
        session's.
        """
        return await self._remote.put(array, on, device, deadline_in(timeout))

    def grad(
        self,
        outputs: Any,
        inputs: Any,
        grad_outputs: Any = None,
        *,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        allow_unused: bool = False,
        timeout: float | None = None,
    ) -> AsyncGradients:
        """Return the gradients of remote tensors, one for each of `inputs`.

        They stay where the graph is.

        Calls with a remote tensor that requires gradients (``session.put(Tensor(x,
        requires_grad=True))``) are recorded in its interpreter. A single call runs the whole
        backward pass: it is ``opdispatch.autograd.grad`` there, with the same arguments, and needs
        the library ``array``. Raises KernelError, caused by an AutogradError, for a tensor without
        a gradient. Gradients of placeholders are placeholders. It may take `timeout` seconds,
        instead of the session's.
        """
        gradients = self._call_operator(
            "array::grad",
            (
                as_list(outputs),
                as_list(inputs),
                [] if grad_outputs is None else as_list(grad_outputs),
            ),
            {
                "retain_graph": retain_graph,
                "create_graph": create_graph,
                "allow_unused": allow_unused,
            },
            CallOptions.checked(remote=True, timeout=timeout),
        )
        return split_gradients(gradients, inputs)

    def program(self, *, timeout: float | None = None) -> AsyncProgram:
        """Record calls and run them as one message: ``async with session.program() as p``.

        It may take `timeout` seconds from the end of the block, instead of the session's.
        """
        return AsyncProgram(self._run_program_within(timeout))

    def as_program(
        self,
        function: Callable[..., Any] | None = None,
        *,
        remote: bool = False,
        timeout: float | None = None,
    ) -> Callable[..., Any]:
        """Decorate a function, which does not wait for its calls, to run them as one program.

        The function is called once, with placeholders for its tensors, to record its calls through
        ``session.call`` and ``session.ops``; after that the recorded program is sent instead. It
        must not depend on the contents of tensors. Other arguments are constants: for new values
        the function is called again. With `remote`, the tensors that it returns stay in the
        interpreter. Each run may take `timeout` seconds, instead of the session's.

        A traced ``Graph`` can be made a program, too: only its calls are used.

        The result is a coroutine function.
        """
        remote, run = check_flag(remote, "remote"), self._run_program_within(timeout)
        if function is None:
            return lambda function: self.as_program(function, remote=remote, timeout=timeout)
        check_callable(function, "function")
        return as_program(function, run, remote=remote)

    def _calls_with(self, options: CallOptions) -> Calls[Coroutine[Any, Any, Any]]:
        def call(operator: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            return self._call_operator(operator, args, kwargs, options)

        def with_options(**others: Any) -> Calls[Coroutine[Any, Any, Any]]:
            return self._calls_with(options.changed(**others))

        def trace(
            operator: str, /, *args: Any, **kwargs: Any
        ) -> Coroutine[Any, Any, tuple[Any, list[TraceLine]]]:
            return self._trace(operator, args, kwargs, options)

        return Calls(call, self._catalog, with_options, trace)

    def _run_program_within(self, timeout: float | None) -> AsyncRunProgram:
        options = CallOptions.checked(timeout=timeout)

        async def run(data: bytes, inputs: Sequence[Any], keeps: bool) -> list[Any]:
            return await self._remote.run_program(data, inputs, keeps, deadline=options.deadline)

        return run
