"""The serving side of the daemon and of interpreters: sockets, streams, statuses.

listeners, run_folder              addresses, locks, sockets
service_manager                    notifications of systemd
grpc_services, status_answers      what all gRPC services share
handshake_pace, connection_limits  what strangers may have of a port
address_filter, port_connections   who is shut out of it, who is connected
reflection                         which services there are, for those who ask
shared_socket                      a unix socket for several users
guard, server_certificates         let those in who may
registry_gate                      holds and refuses requests to the registry
lane_listener                      takes the connections of a local lane
reading_turn                       whose turn it is to read one
call_stream, incoming_tensors      calls over a gRPC stream
calls_in_flight, call_protocols    those of one connection, and who runs them
"""
