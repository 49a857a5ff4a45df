"""The server: a daemon and its interpreters, two halves that know nothing of each other.

What stands above them:

    commands/                   ``opdispatch serve``, ``worker``, ``state`` and ``token``

The halves, each in folders with a map of their own. A process loads one of them:

    daemon/                     the daemon, one asyncio process (``opdispatch serve``)
    worker/                     an interpreter (``opdispatch worker``, or started by the daemon)

What they share:

    access/                     who may do what: identities, roles, tokens
    blame/                      who is to blame when an interpreter dies, and what follows
    metrics/                    what interpreters count, and the daemon reads
    serving/                    sockets, streams and statuses
    library_code/               the code of libraries: stored, taken apart, imported

    configuration                               the settings of a daemon
    call_context, nested_time, direct_run       what a call carries, and what it takes by itself
    operator_names                              names of operators, as clients write them
    message_limit                               the longest message inside
    value_ids                                   the ids of tensors that interpreters keep
    registration_codec                          how registrations travel
    lifted_kernels                              kernels that are registered below others
    device_discovery                            what kernels can use
    logs, log_fields, log_relay,
    log_repetition                              log records, their fields, how they travel, how many
    private_file                                a log file of the daemon's user alone
    process_watch, parent_watch                 the end of a process, noticed at once
    shared_page                                 memory that outlives the process that writes it
    process_memory                              how much memory one has
    deferred_numpy                              NumPy, where nothing is computed
    fork_guard                                  what a library that forks must not take along
    socket_names                                of sockets that others may take the place of
    full_collections                            when the garbage collector goes through everything
    file_sync                                   files that survive a loss of power
    lock_file                                   files that say by a lock who owns what
    fault_points                                where a test makes a process die
"""
