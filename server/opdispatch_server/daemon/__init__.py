"""The daemon, one asyncio process: its libraries, its interpreters, and the calls between them.

lifecycle            starts and stops the daemon, in order
take_over            replaces a running daemon without losing calls
parts, entry_points  the composition root: create every part, and the services that callers reach
caller_access        authentication of callers: tokens, users, TLS
interpreter_events   reacts to interpreters that start, stop or become unfit

Each folder imports from those below it:

monitoring/          the daemon over HTTP: metrics and probes
servicers/           gRPC services and local lanes: the requests of clients and interpreters
calls/               calls and programs: queues and routing
values/              the table of values that interpreters keep for clients
libraries/           libraries: loaded, replaced, rolled back, scaled, unloaded
interpreters/        interpreters, for as long as they are connected
state/               the persistent state: state folder and journal
processes/           processes of interpreters: started, watched, ended
environments/        Python environments that libraries require
board/               the health status that probes read
event_loop/          waiting and working in the event loop
"""
