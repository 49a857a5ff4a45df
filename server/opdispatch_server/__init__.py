"""The daemon and its worker interpreters.

The daemon, one asyncio process (``opdispatch serve``):

    commands, configuration, logs               the command line's side
    daemon                                      wires everything below; starts and stops
    listeners, run_folder                       addresses, locks, sockets
    execution_servicer, registry_servicer,
    interpreter_servicer, health                thin adapters: gRPC in, gRPC out
    grpc_services, status_answers,
    call_context, message_limit                 what all of them share
    call_stream, calls_in_flight,
    incoming_tensors                            many calls over one connection
    call_router, chosen_line, daemon_events     chooses a kernel, forwards the call, says so
    registry_view, load_request, module_file    what clients see and ask for
    library_registry, library_transaction,
    library_version, library_store              libraries: load, replace, unload, recover
    operator_registry, registration_codec       the daemon's own dispatcher
    changes                                     what loads wait for
    interpreter_sessions, supervisor            the interpreters, as the daemon knows them

An interpreter, a process of its own (``opdispatch worker``, or started by the daemon):

    interpreter_start, interpreter_process,
    parent_watch                                its main function; its end
    interpreter                                 the session with the daemon
    interpreter_libraries, loaded_library,
    module_import, library_archive              the code of libraries, in and out
    kernel_execution, user_traceback,
    kernel_profile                              runs kernels, reports what they raise and take
    kernel_lanes, kernel_lane, reading_turn     calls that come over local lanes
    kernel_streams, kernel_calls,
    streamed_call, call_stream                  calls that come over gRPC
    direct_calls, direct_listener               those that clients send here themselves
    daemon_lane                                 calls kernels of other interpreters
"""
