"""The daemon and its worker interpreters.

The daemon, one asyncio process (``opdispatch serve``), in folders with a map of their own:

    servicers/          its gRPC services
    libraries/          its libraries: loaded, replaced, rolled back, scaled, unloaded
    calls/              calls and programs: whose turn it is, and where they go
    interpreters/       interpreters, for as long as they are connected
    processes/          their processes: started, watched, ended
    environments/       what one needs installed for a library
    state/              what survives a daemon: its state folder and journal

    commands, state_commands, configuration     the command line's side
    daemon                                      wires all of this; starts and stops
    interpreter_events                          what follows when an interpreter comes or goes
    operator_registry, kernel_route             the daemon's own dispatcher
    registry_view, registration_waits           what clients see of it, and wait for
    changes                                     waiting until something is different

An interpreter, a process of its own (``opdispatch worker``, or started by the daemon):

    worker/             its libraries, and the calls of them

Both:

    blame/              who is to blame when an interpreter dies, and what follows: the policy
    serving/            sockets, streams and statuses
    values/             tensors that interpreters keep for clients
    library_code/       the code of libraries: stored, taken apart, imported

    call_context, nested_time, direct_run       what a call carries, and what it takes by itself
    operator_names                              names of operators, as clients write them
    message_limit                               the longest message inside
    value_ids                                   the ids of tensors that interpreters keep
    registration_codec                          how registrations travel
    lifted_kernels                              kernels that are registered below others
    devices                                     what kernels can use
    logs, log_fields, log_relay,
    log_repetition                              log records, their fields, how they travel, how many
    fork_guard                                  what a library that forks must not take along
    full_collections                            when the garbage collector goes through everything
    loop_slices                                 long work that lets the event loop go on
    shielded                                    work that goes on when nobody waits for it
    file_sync                                   files that survive a loss of power
    lock_file                                   files that say by a lock who owns what
    fault_points                                where a test makes a process die
"""
