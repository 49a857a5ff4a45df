"""Interpreters as the daemon knows them, for as long as they are connected.

sessions, session    all of them, and one, with the lane on which it gets calls
forwarded_call       what a client's request tells it
own_address          where one listens itself, and who may call there
heartbeat_lease,
starvation           how long one may be silent, and whether it could speak
silence              which of the silent ones are busy, and which are lost
termination          how they are ended, and what a process's end means
totals               what they have counted, those that have gone included
call_activity        what is added to that from one look to the next
blame                who has brought one down, and what is held against whom
"""
