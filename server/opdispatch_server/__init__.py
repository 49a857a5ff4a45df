"""The daemon and its worker interpreters.

Folders, each with a map of its own:

    libraries/       the daemon's libraries: loaded, replaced, rolled back, scaled, unloaded
    library_code/    their code: stored, taken apart, imported
    environments/    what an interpreter needs installed for them
    processes/       the processes of interpreters: started, watched, ended
    values/          tensors that interpreters keep for clients
    state/           what survives a daemon: its state folder and journal

The daemon, one asyncio process (``opdispatch serve``):

    commands, state_commands, configuration,
    logs                                        the command line's side
    daemon                                      wires everything below; starts and stops
    listeners, run_folder                       addresses, locks, sockets
    execution_servicer, registry_servicer,
    interpreter_servicer, health                thin adapters: gRPC in, gRPC out
    grpc_services, status_answers, message_limit,
    peer_identity, load_progress                what all of them share
    registry_view, registration_waits           what clients see, and wait for
    operator_registry, kernel_route             the daemon's own dispatcher
    interpreter_sessions, interpreter_session,
    interpreter_lane, leases, core_wait         interpreters, as long as they are connected
    changes                                     waiting until something is different
    interpreter_gate, admission                 whose turn it is in each of them
    call_stream, incoming_tensors               calls over a gRPC stream
    call_lanes, byte_budget                     calls over local lanes
    calls_in_flight, quick_calls                those of one connection, and those without tasks
    call_chooser, chosen_line, call_router,
    call_recovery, daemon_events                chooses a kernel, forwards the call, says so
    program_plans, program_router               the same for programs
    kernel_runs                                 what is running, and its end if it takes too long
    direct_routes                               how clients reach interpreters themselves

An interpreter, a process of its own (``opdispatch worker``, or started by the daemon):

    interpreter_start, interpreter_process      its main function
    interpreter, heartbeat,
    returning_interpreter                       the session with the daemon, and the next one
    interpreter_libraries, loaded_library       the libraries that it holds
    kernel_execution, chosen_kernel,
    raised_errors, kernel_profile               runs kernels, reports what they raise and take
    compiled_program, program_execution         runs programs
    library_turns, several_turns, waiting_room  whose turn it is in a library
    call_rules                                  which calls may run
    kernel_lanes, kernel_lane, lane_call,
    reading_turn, turn_watch                    calls that come over local lanes
    kernel_streams, kernel_calls,
    streamed_call                               calls that come over gRPC
    direct_calls, direct_run, direct_listener   those that clients send here themselves
    daemon_lane                                 calls kernels of other interpreters
    devices, lost_device                        what kernels can use, and can no more
    fork_guard                                  what a library that forks must not take along

Both:

    call_context, nested_time                   what a call carries, and what it takes by itself
    registration_codec                          how registrations travel
    full_collections                            when the garbage collector goes through everything
    loop_slices                                 long work that lets the event loop go on
    lifted_kernels                              kernels that are registered below others
    lane_listener                               takes the connections of a local lane
    fault_points                                where a test makes a process die
"""
