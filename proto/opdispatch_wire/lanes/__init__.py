"""Lanes: connections with many calls in flight, and the large tensors of these.

A gRPC stream of calls:

blocking_outbox                 what is sent when
chunk_assembler                 putting them together, within a budget
stream_tensors                  those of all calls that are under way
stream_lane                     who is at the other end
blocking_stream, async_stream   its calling side, for threads and for event loops

The local lane:

frame_kind, frames              its frames
frame_stream                    moving them in an event loop
frame_outbox, frame_writer      writing them together, in threads
blocking_connection             moving them in threads: one reads, any of them writes
descriptors                     files that travel beside them
lane_socket, lane_messages      its sockets, and the first words on it
lane_memory                     memory that its two ends share
lane_tensors                    where the tensors of its calls are: in memory, or in frames
blocking_lane, async_lane       its calling side, for threads and for event loops
shared_reading                  who waits for which reply, in threads, and which of them reads
brief_spin                      looking for the next frame before sleeping

Both:

awaited_calls                   calls that an event loop waits for
awaited_replies                 who waits for which reply, in an event loop
patient_wait                    a thread's wait for a reply, which may be given up
pending_calls                   calls that no thread waits for
deadline_watch, sleeper         threads that sleep until a time, or until they are woken
"""
