"""Lanes on which a session's calls go to the daemon, or directly to an interpreter.

lane_choice                            the kinds of lanes to try; no I/O
call_attempt                           one call, from its request to its result
call_plan                              the parts that similar calls have in common
planned_memory                         shared memory of calls that follow a plan

To the daemon:

protocol                               interface of a blocking session's lanes
to_daemon, async_to_daemon             the lane, and a new one when it breaks
unary_calls                            each call as its own gRPC request
single_call                            the only call of a process, over the local lane

To an interpreter:

routes                                 the interpreters that run calls of each shape; no I/O
relayed_calls                          calls that the daemon relays to unreachable interpreters
direct_way                             chooses the interpreter of a call
direct_local, async_direct_local       over local lanes, on the same machine
direct_streams, async_direct_streams   over gRPC streams, to other machines
waiting_calls                          calls that wait for a busy interpreter; no I/O
busy_watch, async_busy_watch           move calls away from busy interpreters
overdue_replies                        deadlines of planned calls in an event loop
idle_memory                            releases unused shared memory
"""
