"""Blame: which library made an interpreter die, hang or fall ill, and the consequences.

flight_record     what an interpreter runs, in memory that outlives its process
fitness           whether an interpreter's process can still run kernels
lock_holder       which of its threads holds the interpreter lock
suspicion         the policy, without I/O: from deaths to culprits and suspects
circuit_breaker   the policy, without I/O: when an operator's calls are refused
separation        the policy, without I/O: which interpreters are for harmful libraries

``daemon.interpreters.blame`` is the daemon's one instance of that policy: it gathers the facts of
each death, and applies the verdict to calls, placement and reports.
"""
