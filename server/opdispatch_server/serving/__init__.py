"""The serving side of the daemon and of interpreters: sockets, streams, statuses.

listeners, run_folder              addresses, locks, sockets
service_manager                    notifications to systemd
grpc_services, status_answers      shared by all gRPC services
handshake_pace, connection_limits  limits for unauthenticated connections
address_filter, port_connections   blocked addresses; the connections of a port
reflection                         lists the services on request
shared_socket                      a unix socket for several users
authentication_interceptor         authentication before every method
server_certificates                the certificates of TCP ports
registry_gate                      holds and refuses requests to the registry
lane_listener                      accepts the connections of a local lane
reading_turn                       which thread may read a lane
call_stream, incoming_tensors      calls over a gRPC stream
eager_coroutine                    a coroutine that continues inside ``resume``
calls_in_flight, call_protocols    the calls of one connection; protocols of their runners
"""
