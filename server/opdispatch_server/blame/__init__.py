"""Blame: who it is when an interpreter dies, hangs or falls ill, and what follows from that.

flight_record     what an interpreter is running, in memory that outlives its process
fitness           whether the interpreter's own process is still sound
lock_holder       which of its threads keeps the interpreter lock
suspicion         the policy, pure: deaths in, culprits and suspects out
circuit_breaker   the policy, pure: when calls of an operator are refused, and allowed again
separation        the policy, pure: which interpreters are for libraries that do harm

``daemon.interpreters.deaths`` is the daemon's one instance of that policy: it gathers what is known
of each death, and says to calls, placement and people what follows.
"""
