"""Interpreters as the daemon knows them, for as long as they are connected.

sessions, session    all of them, and one, with the lane on which it gets calls
forwarded_call       what a client's request tells it
own_address          where one listens itself, and who may call there
heartbeat_lease,
starvation           how long one may be silent, and whether it could run at all
silence              whether a silent interpreter is busy or lost
termination          ending interpreters, and judging how they ended
totals               counters over all interpreters, past ones included
call_activity        the change in these counters over time
blame                which library brought an interpreter down, and the consequences
"""
