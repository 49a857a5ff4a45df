"""The libraries of the daemon: loaded, replaced, rolled back, scaled, unloaded.

registry                         all operations, as the servicers call them
catalog, version, replica        the versions, and the interpreters that hold them
counted_calls                    how many calls a version or replica has
load_request                     a client's request to load a library, checked
permissions                      who may load, replace and remove a library
loading, load_race, placement    loading: concurrent loads, choice of interpreter
steady_report                    progress reports during long steps
staging                          imported in an interpreter, not yet published
publication, batch_comparison,
instructions                     publication in every process, atomic
replica_joining                  more interpreters for what is published, or fewer
unloading, rollback              which version is active then, and what is kept
retirement                       the end of replaced and unloaded versions, after their calls
operator_registry, kernel_route  the daemon's own dispatcher; its kernels forward
direct_routes                    how clients call interpreters directly
scaling                          keeps each library in the wanted number of interpreters
interpreter_pools                interpreters reserved for a library
draining                         which interpreters are drained
device_holders                   which interpreters have which devices
availability                     libraries that have lost their interpreters
wait_reasons                     what a library waits for, in words
journaled_changes,
journal_replay                   writing the journal, and restoring from it
change_log                       log records of changes
memory_given_back                the memory that an unload frees
"""
