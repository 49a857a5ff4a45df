"""Interpreters as the daemon knows them, for as long as they are connected.

interpreter_sessions, interpreter_session   all of them, and one
interpreter_lane                            the connection on which it gets calls
leases, core_wait                           how long one may be silent, and whether it could speak
silent_interpreters                         which of the silent ones are busy, and which are lost
interpreter_ends                            how they are ended, and what a process's end means
blame                                       who has brought one down, and what is held against whom
"""
