"""The ways that a session's calls take: to its daemon, or directly to an interpreter.

lane_choice                            which kinds are tried, and which direct calls take; no I/O
call_attempt                           one call on its way
call_plan                              what does not change from one call to the next like it
planned_memory                         what such a call has in shared memory

To the daemon:

protocol                               what a blocking session needs of a way
to_daemon, async_to_daemon             the lane, and a new one when it breaks
unary_calls                            each call as a gRPC request of its own
single_call                            the one call of a process, over the local lane

To an interpreter:

routes                                 which interpreters run which calls; no I/O
relayed_calls                          those that the daemon relays to interpreters out of reach
direct_way                             which of them gets a call, and how it goes there
direct_local, async_direct_local       over local lanes, on the same machine
direct_streams, async_direct_streams   over gRPC streams, on another one
waiting_calls                          which of them are kept from running there; no I/O
busy_watch, async_busy_watch           ask the daemon whether calls are to move, and move them
overdue_replies                        planned calls of an event loop whose deadline has passed
memory_tender                          memory that is shared with those on the same machine
"""
