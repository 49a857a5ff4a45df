"""The daemon's side of connected interpreters.

sessions, session    the connected interpreters, and one session with its call lane
session_end          why a session ended
forwarded_call       a client's request as an interpreter receives it
own_address          the address at which an interpreter listens for calls
heartbeat_lease,
starvation           the limit on silence, and whether the process was starved of CPU
silence              decide whether a silent interpreter is busy or lost
termination          ending interpreters, and judging how they ended
totals               counters over all interpreters, past ones included
call_activity        the change in these counters over time
blame                the library that brought an interpreter down, and the consequences
"""
