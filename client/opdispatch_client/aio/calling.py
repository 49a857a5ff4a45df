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

        A call may take `timeout` seconds, from the moment in which it is made, instead of the
        session's; ``math.inf`` is any time. Then it raises DeadlineExceededError. Calls that its
        kernel makes have what is left of them. So may a call of one operator:
        ``session.ops.image.sobel.with_options(timeout=0.5)(picture)``.

        With ``retry=False``, ``session.with_options(retry=False).ops.bank.quote(x)`` raises
        InterpreterDiedError instead of running again when its interpreter dies. An operator that
        writes to its arguments never runs again. With `remote`, results stay where they are, as
        with ``session.call(..., remote=True)``.

        `on_progress` is called after each chunk of a large tensor that was sent or received, with a
        TransferProgress; only over a gRPC stream do tensors go in chunks. It is called in the
        event loop, and not of calls with `remote`.
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

        Returns what the schema promises: None, one value, or a tuple; tensors are NumPy
        arrays. Arguments that the operator writes to are updated in place. Raises
        OperatorNotFoundError, ArgumentError, NoKernelError, KernelError if the kernel raised,
        and WireError for an argument that cannot be sent.

        With `remote`, tensors among the results are AsyncRemoteTensors: they stay where they are.
        An operator's own argument of that name can be given through ``ops``. Other choices for a
        call, such as a timeout, are those of ``with_options``.
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

        It is on the array's own device there, or on `device`, of those that interpreters have, such
        as ``"cuda:0"``. Without `on`, calls with it move it to an interpreter that holds their
        library. Raises RemoteLimitError, InterpreterNotFoundError, DeviceError, and WireError for
        what is no array. It may take `timeout` seconds, instead of the session's.
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
        requires_grad=True))``) are recorded in its interpreter. One call runs the whole backward
        pass. It is ``opdispatch.autograd.grad`` there, whose arguments these are; the library
        ``array`` is loaded. Raises KernelError, of an AutogradError, for what has no gradient.
        Those of placeholders are placeholders. It may take `timeout` seconds, instead of the
        session's.
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
        """Record calls, and have them run as one message: ``async with session.program() as p``.

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

        The function is called once with placeholders for its tensors, in which ``session.call``
        and ``session.ops`` record; from then on the program is sent. It must not look at what
        tensors contain. Other arguments are constants: with other ones it is called again. With
        `remote`, the tensors that it returns stay in the interpreter. Each run may take `timeout`
        seconds, instead of the session's.

        A ``Graph`` that was traced becomes a program as well: nothing but its calls counts.

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
