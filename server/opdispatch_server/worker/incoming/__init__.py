"""Calls to an interpreter: over lanes, over gRPC, and past the daemon.

call_rules                     which of them may run
kernel_lanes, kernel_lane,
lane_call, turn_watch          over local lanes: who reads and runs them
lane_pace, lane_replies        which kernels are slow there; what is sent when
kernel_streams, stream_calls,
kernel_threads                 over gRPC
direct_calls, direct_listener  from clients themselves, past the daemon
planned_run                    of those that follow plans, whichever way they come
"""
