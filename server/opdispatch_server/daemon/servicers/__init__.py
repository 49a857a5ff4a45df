"""The daemon's answers to clients and interpreters: thin adapters, a request in, a reply out.

execution, registry, interpreters   one for each gRPC service of the wire contract
local_lanes                         calls of clients and of kernels, over local lanes
hold_values                         the streams on which clients hold values
registry_view, registration_waiters  what clients see of the registry, and wait for
registry_feed, operator_log         changes of the registry, for those who watch it
library_uploads                     files of libraries that come in chunks
load_progress                       the steps of a load, as they come
peer_identity                       who asks
"""
