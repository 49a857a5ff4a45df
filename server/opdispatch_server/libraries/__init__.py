"""The libraries of the daemon: loaded, replaced, rolled back, scaled, unloaded.

library_registry                       all of that, for whoever serves clients
library_catalog, library_version,
replica                                what is known of them, and who holds them
steady_report                          a word now and then, while something takes long
load_request                           what a client asks to be loaded, checked
library_loading, load_race, placement  bringing one in: in which interpreter, and whose turn it is
library_staging                        imported there, and not published yet
library_transaction, batch_comparison,
followers                              into the registry, all of it or nothing
library_replicas                       how many interpreters hold each
library_settling                       those that have lost theirs
library_waits                          what each waits for, in words
library_journal, library_restoration   what is on disk, and back from there
library_events                         what the log says of them
memory_given_back                      what an unload frees
"""
