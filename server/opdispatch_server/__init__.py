"""The server: a daemon and its interpreters, two halves that do not import each other.

Above both:

    commands/                   ``opdispatch serve``, ``worker``, ``state`` and ``token``

The halves, each in folders with a map of their own. A process loads one of them:

    daemon/                     the daemon, one asyncio process (``opdispatch serve``)
    worker/                     an interpreter (``opdispatch worker``, or started by the daemon)

Shared by both:

    access/                     who may do what: identities, roles, tokens
    blame/                      which call an interpreter's death is blamed on
    metrics/                    counters that interpreters write and the daemon reads
    serving/                    sockets, streams and statuses
    library_code/               the code of libraries: stored, taken apart, imported

    daemon_configuration                        the settings of a daemon
    call_context, nested_time, direct_run       a call's context, and the time of its own work
    operator_names                              operator names as clients write them
    internal_message_limit                      the longest internal message
    value_ids                                   the ids of tensors that interpreters keep
    registration_codec                          the wire format of registrations
    lifted_kernels                              registers kernels below newer ones
    device_discovery                            the devices that kernels can use
    logs, log_fields, log_relay,
    log_repetition                              log records: fields, relay, limits on repetition
    private_file                                files that only the daemon's user can read
    process_watch, parent_watch                 the end of a process, noticed at once
    shared_page                                 memory that outlives the process that writes it
    process_memory                              the memory of a process
    deferred_numpy                              NumPy, imported on first use
    fork_guard                                  protects connections from libraries that fork
    socket_names                                names of sockets that another daemon may replace
    full_collections                            when full garbage collections run
    file_sync                                   files that survive a loss of power
    lock_file                                   lock files that name their owner
    fault_points                                where tests make a process die
"""
