"""Lanes: connections with many calls in flight, and the large tensors of these calls.

A gRPC stream of calls:

blocking_outbox                 queue of a stream's sending thread
chunk_assembler                 reassembles chunked tensors, within a budget
stream_tensors                  large tensors of a stream's calls in flight
stream_lane                     identity of a stream's other end
blocking_stream, async_stream   the calling side, for threads and for event loops

The local lane:

frame_kind, frames              encoding and parsing of frames
frame_stream                    frames over a socket in an event loop
frame_outbox, frame_writer      frames written together, by threads
blocking_connection             frames over a socket in threads: one reads, any of them writes
descriptors                     file descriptors sent with frames
lane_socket, lane_messages      sockets, and the handshake
lane_memory                     memory that both ends share
lane_tensors                    tensors of calls, in shared memory or in frames
blocking_lane, async_lane       the calling side, for threads and for event loops
shared_reading                  threads that wait for replies, one of which reads
brief_spin                      polling for the next frame before sleeping

Both:

awaited_calls                   calls sent and awaited in an event loop
awaited_replies                 replies awaited in an event loop
patient_wait                    a thread's wait for a reply, which may be given up
pending_calls                   calls without a waiting thread
deadline_watch, sleeper         threads that sleep until a deadline, or until they are woken
"""
