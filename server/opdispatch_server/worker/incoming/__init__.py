"""Receiving calls in an interpreter: over local lanes and gRPC, from the daemon and from clients.

call_rules                     which calls may run

kernel_lanes, kernel_lane,
lane_call, turn_watch          local lanes, and the threads that read and run their calls
lane_pace, lane_replies        detects slow kernels; sends replies, several at once

kernel_streams, stream_calls,
kernel_threads                 gRPC streams, and the threads that run their calls
direct_calls                   direct calls by clients, past the daemon
direct_entry_points,
direct_listener                the lane, ports and tickets for those
planned_run                    calls that follow plans, on lanes and streams
"""
