"""The daemon, one asyncio process: its libraries, its interpreters, and the calls between them.

lifecycle            starts it, and stops it, in order
take_over            one daemon takes the place of another that runs
parts                what it is made of: the composition root
interpreter_events   what follows when an interpreter comes or goes

Each folder imports from those below it:

monitoring/          the daemon over HTTP: metrics and probes
servicers/           gRPC services and local lanes: what clients and interpreters can ask
calls/               calls and programs: whose turn it is, and where they go
values/              the table of values that interpreters keep for clients
libraries/           libraries: loaded, replaced, rolled back, scaled, unloaded
interpreters/        interpreters, for as long as they are connected
state/               what survives a daemon: its state folder and journal
processes/           processes of interpreters: started, watched, ended
environments/        what an interpreter needs installed for a library
board/               what can be called at the moment, for probes
event_loop/          waiting and working inside the event loop
"""
