"""The counters of the daemon and of interpreters, which the daemon reads.

call_counts       calls by kernel, in memory that outlives the interpreter
call_table        the same as the daemon reads them, and their sums
client_calls      calls by client
label_limits      how many series and clients are distinguished
"""
