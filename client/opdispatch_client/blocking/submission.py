"""Single calls, ``submit`` and ``map`` of a blocking session.

Written by hand, like its counterpart ``aio.submission``: here calls are made at once, and only a
call that cannot be encoded is searched for placeholders of a program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from opdispatch.local_state.tracing_state import is_traced, record_call, traces, warn_of_trace
from opdispatch.tracing.pytree import leaves
from opdispatch_client.blocking.calls import BlockingCalls
from opdispatch_client.blocking.ordered_results import OrderedResults
from opdispatch_client.blocking.remote_calls import RemoteCalls
from opdispatch_client.call_options import (
    KEEPING_OPTIONS,
    SESSIONS_OPTIONS,
    CallOptions,
    options_of,
)
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_plan import UNPLANNED, nothing_is_set, planned_arguments
from opdispatch_client.map_arguments import IN_FLIGHT_DEFAULT
from opdispatch_client.operator_call import OperatorCall
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
        """Begin a call and return at once; the future has its result or its error.

        Up to 1,024 calls may be in flight; the next one waits for one of them to end. Cancelling
        the future cancels the call: it does not run, unless an interpreter has it already, in which
        case its result is discarded. The future's callbacks run one after the other, in a separate
        thread. With `remote`, results stay in the interpreter: see ``call``. With `timeout`, it has
        so many seconds from now, including the wait for other calls, and then fails with
        DeadlineExceededError; None means the session's timeout, from when it begins.
        """
        return self._begin(operator, args, kwargs, options_of(remote, timeout))

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

        Results come in the order of the items, with the error of a call in place of its result.
        Calls begin at once, and as results are taken; at most `in_flight` calls have begun whose
        results were not taken. All run with the modes that are active now, such as autocast. After
        an error, and when the iterator is closed, calls in flight are cancelled. With `remote`,
        results stay in the interpreter: see ``call``. Each call may take `timeout` seconds from
        when it begins, instead of the session's.
        """
        options = options_of(remote, timeout)

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
        key = None
        if (options is SESSIONS_OPTIONS or options is KEEPING_OPTIONS) and nothing_is_set():
            planned = planned_arguments(operator, args, kwargs)
            if planned is not None:
                key = planned.key
                if options is SESSIONS_OPTIONS or self._remote.keep_planned(planned):
                    future = self._calls.submit_planned(operator, planned, flush=flush)
                    if future is not None:
                        return future
        # Counted from now on, including the wait for other calls.
        deadline = None if options.timeout is None else options.deadline
        if traces() and any(map(is_traced, leaves((args, kwargs)))):
            warn_of_trace(
                f"{operator} is not recorded in the trace, since its result may come at any "
                "moment: that is a constant of the graph; call it instead"
            )
        call = functools.partial(
            OperatorCall, operator, args, kwargs, retry=self._endpoint.retry, deadline=deadline
        )
        abandon = None
        if options.remote:
            lease, keep, make = self._remote.open(deadline=deadline)
            abandon = functools.partial(lease.release, keep.prefix)
            call = functools.partial(call, keep=keep, make=make, new=self._remote.new_of(lease))
            key = None if key is None else (key, lease.session)
        make_call = functools.partial(call, plan_key=key)
        return self._calls.submit(make_call, flush=flush, deadline=deadline, abandon=abandon)

    def _call_operator(
        self,
        operator: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """Make one call; a call with placeholders is recorded."""
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
                finally:  # an exception that is kept would keep these alive
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
    """Return one gradient for each input."""
    return one_for_each(gradients, inputs)
