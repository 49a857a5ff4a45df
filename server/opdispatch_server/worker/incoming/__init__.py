"""Calls to an interpreter: over lanes, over gRPC, and past the daemon.

call_rules                     which of them may run
kernel_lanes, kernel_lane,
turn_watch                     over local lanes
kernel_streams, kernel_calls,
kernel_threads                 over gRPC
direct_calls, direct_listener  from clients themselves, past the daemon
"""
