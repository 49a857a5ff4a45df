"""What a blocking session calls: operators, with values here or elsewhere, and programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from opdispatch.tracing.structure import leaves
from opdispatch.tracing_state import is_traced, record_call, traces, warn_of_trace
from opdispatch_client import traced_function
from opdispatch_client.blocking_calls import BlockingCalls
from opdispatch_client.call_options import SESSIONS_OPTIONS, CallOptions, deadline_in
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.listings import TraceLine
from opdispatch_client.operator_call import OperatorCall
from opdispatch_client.operator_catalog import OperatorCatalog
from opdispatch_client.ordered_results import IN_FLIGHT_DEFAULT, OrderedResults
from opdispatch_client.program import PlaceholderUsed, Program, RunProgram
from opdispatch_client.remote_calls import RemoteCalls
from opdispatch_client.remote_ops import Calls, RemoteOps
from opdispatch_client.remote_tensor import RemoteTensor
from opdispatch_client.request_arguments import check_callable, check_flag
from opdispatch_wire.caller_tensors import OnTransfer


class CallingSession:
    """The methods of a blocking session for calls, remote tensors and programs."""

    _calls: BlockingCalls
    _remote: RemoteCalls
    _endpoint: Endpoint
    _catalog: OperatorCatalog

    def with_options(
        self,
        *,
        retry: bool | None = None,
        remote: bool = False,
        timeout: float | None = None,
        on_progress: OnTransfer | None = None,
    ) -> Calls[Any]:
        """``call``, ``trace`` and ``ops`` with other choices than the session's.

        A call may take `timeout` seconds, from the moment in which it is made, instead of the
        session's; ``math.inf`` is any time. Then it raises DeadlineExceededError. Calls that its
        kernel makes have what is left of them. So may a call of one operator:
        ``session.ops.image.sobel.with_options(timeout=0.5)(picture)``.

        With ``retry=False``, ``session.with_options(retry=False).ops.bank.quote(x)`` raises
        InterpreterDiedError instead of running again when its interpreter dies. An operator that
        writes to its arguments never runs again. With `remote`, results stay where they are, as
        with ``session.call(..., remote=True)``.

        `on_progress` is told each time that a chunk of a large tensor was sent or has come, as a
        TransferProgress; only over a gRPC stream do tensors go in chunks. It is called in the
        session's own threads, and not of calls with `remote`.
        """
        return self._calls_with(
            CallOptions.checked(
                retry=retry, remote=remote, timeout=timeout, on_progress=on_progress
            )
        )

    @property
    def ops(self) -> RemoteOps[Any]:
        """The daemon's operators: ``session.ops.namespace.name(...)``."""
        return self._calls_with(SESSIONS_OPTIONS).ops

    def call(self, operator: str, /, *args: Any, remote: bool = False, **kwargs: Any) -> Any:
        """Calls an operator, such as ``"image::sobel"`` or ``"math::add.Scalar"``.

        Returns what the schema promises: None, one value, or a tuple; tensors are NumPy
        arrays. Arguments that the operator writes to are updated in place. Raises
        OperatorNotFoundError, ArgumentError, NoKernelError, KernelError if the kernel raised,
        and WireError for an argument that cannot be sent.

        With `remote`, tensors among the results are RemoteTensors: they stay where they are.
        An operator's own argument of that name can be given through ``ops``. Other choices for a
        call, such as a timeout, are those of ``with_options``.
        """
        options = SESSIONS_OPTIONS if remote is False else CallOptions.checked(remote=remote)
        return self._call_operator(operator, args, kwargs, options)

    def submit(
        self,
        operator: str,
        /,
        *args: Any,
        remote: bool = False,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Begins a call and returns at once; the future has its result, or what went wrong.

        Any number of calls may be under way; with 1,024, the next one waits for one of them to
        end. Cancelling the future cancels the call: it does not run then, unless an interpreter
        has it already, and its result is thrown away. The future's callbacks run one after the
        other, in a thread of their own. With `remote`, results stay where they are: see ``call``.
        With `timeout`, it has so many seconds from now, the wait for others included, and fails
        with DeadlineExceededError then; None is the session's timeout, from when it begins.
        """
        options = SESSIONS_OPTIONS
        if remote is not False or timeout is not None:
            options = CallOptions.checked(remote=remote, timeout=timeout)
        return self._begin(operator, args, kwargs, options)

    def map(
        self,
        operator: str,
        list_of_args: Iterable[Iterable[Any]],
        *,
        in_flight: int = IN_FLIGHT_DEFAULT,
        remote: bool = False,
        timeout: float | None = None,
    ) -> OrderedResults:
        """Calls an operator once for each item, a tuple of arguments; iterates over the results.

        They come in the order of the items, and the error of a call where its result would.
        Calls begin at once, and as results are taken; at most `in_flight` have begun whose
        result was not taken. All are made with what is switched on now, such as autocast. After
        an error, and when the iterator is closed, those under way are cancelled. With `remote`,
        results stay where they are: see ``call``. Each call may take `timeout` seconds from when
        it begins, instead of the session's.
        """
        options = CallOptions.checked(remote=remote, timeout=timeout)

        def begin(args: tuple[Any, ...]) -> Future[Any]:
            return self._begin(operator, args, {}, options, flush=False)

        return OrderedResults(begin, self._calls.flush, list_of_args, in_flight)

    def trace(self, operator: str, /, *args: Any, **kwargs: Any) -> tuple[Any, list[TraceLine]]:
        """Calls an operator; returns the result and the kernels visited, in order of entry."""
        return self._trace(operator, args, kwargs, SESSIONS_OPTIONS)

    def _trace(
        self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions
    ) -> tuple[Any, list[TraceLine]]:
        retry = self._endpoint.retry if options.retry is None else options.retry
        call = OperatorCall(
            operator, args, kwargs, retry=retry, trace=True, deadline=options.deadline
        )
        result: tuple[Any, list[TraceLine]] = self._remote.make(call)
        return result

    def put(
        self,
        array: Any,
        on: str | None = None,
        *,
        device: str | None = None,
        timeout: float | None = None,
    ) -> RemoteTensor:
        """Puts a copy of an array into an interpreter: into the one named `on`, or any.

        It is on the array's own device there, or on `device`, of those that interpreters have, such
        as ``"cuda:0"``. Without `on`, calls with it move it to an interpreter that holds their
        library. Raises RemoteLimitError, InterpreterNotFoundError, DeviceError, and WireError for
        what is no array. It may take `timeout` seconds, instead of the session's.
        """
        return self._remote.put(array, on, device, deadline_in(timeout))

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
    ) -> tuple[Any, ...]:
        """The gradients of remote tensors, one for each of `inputs`; they stay where the graph is.

        Calls with a remote tensor that requires gradients (``session.put(Tensor(x,
        requires_grad=True))``) are recorded in its interpreter. One call goes all the way back. It
        is ``opdispatch.autograd.grad`` there, whose arguments these are; the library ``array`` is
        loaded. Raises KernelError, of an AutogradError, for what has no gradient. Those of
        placeholders are placeholders. It may take `timeout` seconds, instead of the session's.
        """
        gradients = self.with_options(remote=True, timeout=timeout).call(
            "array::grad",
            as_list(outputs),
            as_list(inputs),
            [] if grad_outputs is None else as_list(grad_outputs),
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=allow_unused,
        )
        return one_for_each(gradients, inputs)

    def program(self, *, timeout: float | None = None) -> Program:
        """Records calls, and has them run as one message: ``with session.program() as p``.

        It may take `timeout` seconds from the end of the block, instead of the session's.
        """
        return Program(self._run_program_within(timeout))

    def as_program(
        self,
        function: Callable[..., Any] | None = None,
        *,
        remote: bool = False,
        timeout: float | None = None,
    ) -> Callable[..., Any]:
        """A decorator: the calls of a function run as one program.

        The function is called once with placeholders for its tensors, in which ``session.call``
        and ``session.ops`` record; from then on the program is sent. It must not look at what
        tensors contain. Other arguments are constants: with other ones it is called again. With
        `remote`, the tensors that it returns stay in the interpreter. Each run may take `timeout`
        seconds, instead of the session's.

        A ``Graph`` that was traced becomes a program as well: nothing but its calls counts.
        """
        remote, run = check_flag(remote, "remote"), self._run_program_within(timeout)
        if function is None:
            return lambda function: self.as_program(function, remote=remote, timeout=timeout)
        check_callable(function, "function")
        return traced_function.as_program(function, run, remote=remote)

    def _calls_with(self, options: CallOptions) -> Calls[Any]:
        def call(operator: str, /, *args: Any, **kwargs: Any) -> Any:
            return self._call_operator(operator, args, kwargs, options)

        def with_options(**others: Any) -> Calls[Any]:
            return self._calls_with(options.changed(**others))

        def trace(operator: str, /, *args: Any, **kwargs: Any) -> tuple[Any, list[TraceLine]]:
            return self._trace(operator, args, kwargs, options)

        return Calls(call, self._catalog, with_options, trace)

    def _run_program_within(self, timeout: float | None) -> RunProgram:
        options = CallOptions.checked(timeout=timeout)

        def run(data: bytes, inputs: Sequence[Any], keeps: bool) -> list[Any]:
            return self._remote.run_program(data, inputs, keeps, deadline=options.deadline)

        return run

    def _begin(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
        *,
        flush: bool = True,
    ) -> Future[Any]:
        # From now on, also while it waits for others.
        deadline = None if options.timeout is None else options.deadline
        if traces() and any(map(is_traced, leaves((args, kwargs)))):
            warn_of_trace(
                f"{operator} is not recorded in the trace, since nobody knows when its result is "
                "there: that is a constant of the graph; call it instead"
            )
        retry = self._endpoint.retry
        begin = functools.partial(self._calls.submit, flush=flush, deadline=deadline)
        if options.remote:
            return self._remote.submit(
                operator, args, kwargs, retry=retry, deadline=deadline, begin=begin
            )
        return begin(lambda: OperatorCall(operator, args, kwargs, retry=retry, deadline=deadline))

    def _call_operator(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """One call; one with placeholders is recorded."""
        retry = self._endpoint.retry if options.retry is None else options.retry
        deadline = None if options.timeout is None else options.deadline

        def call() -> Any:
            if options.remote:
                return self._remote.call(operator, args, kwargs, retry=retry, deadline=deadline)
            return self._remote.make(
                OperatorCall(
                    operator,
                    args,
                    kwargs,
                    retry=retry,
                    on_progress=options.on_progress,
                    deadline=deadline,
                )
            )

        try:
            return record_call(operator, args, kwargs, call) if traces() else call()
        except PlaceholderUsed as used:
            return used.recording.call(operator, *args, **kwargs)


def as_list(values: Any) -> list[Any]:
    """The values, whether one was given or several."""
    return list(values) if isinstance(values, list | tuple) else [values]


def one_for_each(gradients: Any, inputs: Any) -> tuple[Any, ...]:
    """One for each input, also while a program is recorded, when the list of them is to come."""
    return tuple(gradients[place] for place in range(len(as_list(inputs))))
