"""Counts of the daemon and of interpreters, whose counts it reads.

call_counts       the calls of each kernel, in memory that outlives the interpreter
call_table        these as the daemon reads them, and sums of several
client_calls      the calls of each client
"""
