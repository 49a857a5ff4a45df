"""The daemon over HTTP, for people and for Prometheus, in a thread of its own.

service         all of it, put together
server          the thread, and the socket that it listens on
routes          the addresses, and who may read them
pages           the page at /, whose files are in page/
page_calls      calls of operators from the page
grid            operators by dispatch keys, and what has changed
live            server-sent events
facts           what is read of the daemon, as of one step of its event loop
exposition      that, as metrics
call_text       those of calls, as text that is kept
triton          the same under the names of Triton's

Nothing here is imported unless ``serve --http`` asks for it: Starlette, uvicorn and
prometheus-client are an extra.
"""
