"""The daemon's HTTP server, for browsers, probes and Prometheus, in its own thread.

service         the HTTP side of one daemon, assembled
server          the thread, and the socket that it listens on
routes          the routes, and the authentication of readers
pages           the page at /, whose files are in page/
page_calls      calls of operators from the page
grid            the table of operators by dispatch keys, and its changes
live            server-sent events
facts           one consistent reading of the daemon's state
exposition      the facts as metrics
call_exposition  the metrics of calls, as cached text
triton          the metrics of calls under Triton's names

Imported only for ``serve --http``: Starlette, uvicorn and prometheus-client are an extra.
"""
