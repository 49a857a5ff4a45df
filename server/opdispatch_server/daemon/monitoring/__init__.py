"""The daemon over HTTP, for people and for Prometheus, in a thread of its own.

service         the HTTP side of one daemon, assembled
server          the thread, and the socket that it listens on
routes          the routes, and who may read them
pages           the page at /, whose files are in page/
page_calls      calls of operators from the page
grid            operators by dispatch keys, and which have changed
live            server-sent events
facts           one consistent reading of the daemon's state
exposition      the facts as metrics
call_exposition  the metrics of calls, as cached text
triton          the same under Triton's names

Imported only for ``serve --http``: Starlette, uvicorn and prometheus-client are an extra.
"""
