"""How a blocking session makes one call, and many.

Written by hand, as its counterpart ``aio.submission`` is: calls are made at once, and only one that
cannot be encoded is looked at for placeholders of a program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from opdispatch.local_state.tracing_state import is_traced, record_call, traces, warn_of_trace
from opdispatch.tracing.structure import leaves
from opdispatch_client.blocking.calls import BlockingCalls
from opdispatch_client.blocking.ordered_results import OrderedResults
from opdispatch_client.blocking.remote_calls import RemoteCalls
from opdispatch_client.call_options import KEEPING_OPTIONS, SESSIONS_OPTIONS, CallOptions
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_plan import UNPLANNED, nothing_is_set, planned_arguments
from opdispatch_client.map_arguments import IN_FLIGHT_DEFAULT
from opdispatch_client.operator_call import Call, OperatorCall
from opdispatch_client.program_recording import PlaceholderUsed, one_for_each

Gradients = tuple[Any, ...]


class Submission:
    """The calls of a blocking session, made at once; ``submit`` and ``map``."""

    _calls: BlockingCalls
    _remote: RemoteCalls
    _endpoint: Endpoint

    def submit(
        self,
        operator: str,
        /,
        *args: Any,
        remote: bool = False,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Begin a call and return at once; the future has its result, or what went wrong.

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
        """Call an operator once for each item, a tuple of arguments; iterate over the results.

        They come in the order of the items, and the error of a call where its result would.
        Calls begin at once, and as results are taken; at most `in_flight` have begun whose
        result was not taken. All are made with what is switched on now, such as autocast. After
        an error, and when the iterator is closed, those under way are cancelled. With `remote`,
        results stay where they are: see ``call``. Each call may take `timeout` seconds from when
        it begins, instead of the session's.
        """
        options = SESSIONS_OPTIONS
        if remote is not False or timeout is not None:
            options = CallOptions.checked(remote=remote, timeout=timeout)

        def begin(args: tuple[Any, ...]) -> Future[Any]:
            return self._begin(operator, args, {}, options, flush=False)

        return OrderedResults(begin, self._calls.flush, list_of_args, in_flight)

    def _begin(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
        *,
        flush: bool = True,
    ) -> Future[Any]:
        planned = None
        if options is SESSIONS_OPTIONS and nothing_is_set():
            planned = planned_arguments(operator, args, kwargs)
            if planned is not None:
                future = self._calls.submit_planned(operator, planned, flush=flush)
                if future is not None:
                    return future
        # From now on, also while it waits for others.
        deadline = None if options.timeout is None else options.deadline
        if traces() and any(map(is_traced, leaves((args, kwargs)))):
            warn_of_trace(
                f"{operator} is not recorded in the trace, since its result may come at any "
                "moment: that is a constant of the graph; call it instead"
            )
        retry = self._endpoint.retry
        key = None if planned is None else planned.key
        begin = functools.partial(self._calls.submit, flush=flush, deadline=deadline)
        if options.remote:
            return self._begin_remote(operator, args, kwargs, deadline, begin)
        return begin(
            lambda: OperatorCall(
                operator, args, kwargs, retry=retry, deadline=deadline, plan_key=key
            )
        )

    def _begin_remote(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        deadline: float | None,
        begin: Callable[[Callable[[], Call]], Future[Any]],
    ) -> Future[Any]:
        """Begin ``RemoteCalls.call`` by ``begin``."""
        lease, keep, make = self._remote.open(deadline=deadline)
        retry = self._endpoint.retry

        def release_on_error(future: Future[Any]) -> None:
            if future.cancelled() or future.exception() is not None:
                lease.release(keep.prefix)

        def make_call() -> Call:
            return OperatorCall(
                operator, args, kwargs, retry=retry, keep=keep, make=make, deadline=deadline
            )

        future = begin(make_call)
        future.add_done_callback(release_on_error)
        return future

    def _call_operator(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """Make one call; one with placeholders is recorded."""
        key = None
        if (options is SESSIONS_OPTIONS or options is KEEPING_OPTIONS) and nothing_is_set():
            planned = planned_arguments(operator, args, kwargs)
            if planned is not None:
                key, result = planned.key, UNPLANNED
                try:
                    if options is SESSIONS_OPTIONS or self._remote.keep_planned(planned):
                        result = self._calls.call_planned(operator, planned)
                except BaseException:
                    planned.abandon()
                    raise
                finally:  # an error may be kept, and this with it
                    planned.leaves.clear()
                if result is not UNPLANNED:
                    return result
        retry = self._endpoint.retry if options.retry is None else options.retry
        deadline = None if options.timeout is None else options.deadline

        def call() -> Any:
            if options.remote:
                return self._remote.call(
                    operator, args, kwargs, retry=retry, deadline=deadline, plan_key=key
                )
            return self._remote.make(
                OperatorCall(
                    operator,
                    args,
                    kwargs,
                    retry=retry,
                    on_progress=options.on_progress,
                    deadline=deadline,
                    plan_key=key,
                )
            )

        try:
            return record_call(operator, args, kwargs, call) if traces() else call()
        except PlaceholderUsed as used:
            return used.recording.call(operator, *args, **kwargs)


def split_gradients(gradients: Any, inputs: Any) -> Gradients:
    """Return one for each input."""
    return one_for_each(gradients, inputs)
