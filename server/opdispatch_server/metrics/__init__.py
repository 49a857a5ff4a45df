"""The counters of the daemon and of interpreters, which the daemon reads.

call_counts       calls by kernel, in memory that outlives the interpreter
call_table        tables of these counts as the daemon reads them, and sums of tables
client_calls      calls by client
label_limits      limits on the numbers of series and clients
"""
