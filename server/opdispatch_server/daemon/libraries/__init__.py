"""The libraries of the daemon: loaded, replaced, rolled back, scaled, unloaded.

registry                         all of that, for the servicers
catalog, version, replica        what is known of them, and who holds them
counted_calls                    how many calls each has
load_request                     what a client asks to be loaded, checked
permissions                      who may bring, replace and remove it
loading, load_race, placement    bringing one in: in which interpreter, and whose turn it is
steady_report                    a word now and then, while something takes long
staging                          imported there, and not published yet
publication, batch_comparison,
followers                        into the registry, all of it or nothing
operator_registry, kernel_route  the daemon's own dispatcher, with kernels that forward
direct_routes                    how clients reach interpreters themselves
scaling                          how many interpreters hold each
interpreter_pools                which interpreters a library may use, and those of its own
device_holders                   which interpreters can have which devices
settling                         those that have lost their interpreters
wait_reasons                     what each waits for, in words
journaling, journal_replay       what is on disk, and back from there
change_log                       what the log says of them
memory_given_back                what an unload frees
"""
