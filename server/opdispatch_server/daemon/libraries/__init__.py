"""The libraries of the daemon: loaded, replaced, rolled back, scaled, unloaded.

registry                         all operations, as the servicers call them
catalog, version, replica        the versions, and the interpreters that hold them
counted_calls                    how many calls a version or replica has
load_request                     checks of a client's request to load a library
permissions                      checks that an identity may load, replace or remove a library
loading, load_race, placement    loading: concurrent loads, choice of interpreter
steady_report                    progress reports during long steps
staging                          imported in an interpreter, not yet published
publication, batch_comparison,
instructions                     publication in every process, atomic
replica_joining                  more interpreters for what is published, or fewer
unloading, rollback              remove versions, or reactivate the previous one
retirement                       the end of replaced and unloaded versions, after their calls
operator_registry, kernel_route  the daemon's own dispatcher, with placeholders for kernels
direct_routes                    routes by which clients call interpreters directly
scaling                          keeps each library in the wanted number of interpreters
interpreter_pools                interpreters reserved for a library
draining                         interpreters that are drained
device_holders                   the devices of each interpreter
availability                     libraries that have lost their interpreters
wait_reasons                     the reasons why a library waits
journaled_changes,
journal_replay                   writing the journal, and restoring from it
change_log                       log records of changes
memory_given_back                the memory that an unload frees
"""
