"""Interpreters as the daemon knows them, for as long as they are connected.

sessions, session    the connected interpreters, and one session with its call lane
session_end          why a session ended
forwarded_call       a client's request as an interpreter receives it
own_address          where an interpreter listens itself, and how it is called there
heartbeat_lease,
starvation           how long one may be silent, and whether it could run at all
silence              whether a silent interpreter is busy or lost
termination          ending interpreters, and judging how they ended
totals               counters over all interpreters, past ones included
call_activity        the change in these counters over time
blame                which library brought an interpreter down, and the consequences
"""
