"""The daemon's gRPC servicers and local lanes: thin adapters from requests to replies.

execution, registry, interpreters   one for each gRPC service of the wire contract
local_lanes                         calls by clients and by kernels, over local lanes
hold_values                         the streams on which clients hold values
registry_view, registration_waiters  the registry as clients see it, and waits for registrations
registry_feed, operator_log         the stream of changes for clients that watch the registry
library_uploads                     library files received in chunks
load_progress                       progress of a load, as a stream
peer_identity                       the identity of a caller, in words
"""
