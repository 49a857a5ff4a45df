"""The daemon's gRPC services: thin adapters, gRPC in, gRPC out.

execution_servicer, registry_servicer,
interpreter_servicer                        one for each service of the wire contract
health                                      grpc.health.v1: what can be called at the moment
library_uploads                             files of libraries that come in chunks
load_progress                               the steps of a load, as they come
peer_identity                               who asks
"""
