"""The wire: generated code, and the conversions that client and server share.

    errors      what the service raises on purpose, beside the dispatcher's own errors
    addresses   where a daemon listens: the forms that people write, and the default
    channel     options of channels and servers, message limits, protocol version
    dtypes      element types by their names
    tensors     arrays <-> v1.Tensor
    values      Python values <-> v1.Value
    calls       boxed calls <-> v1.CallRequest and v1.CallReply
    profiles    what calls took <-> v1.Profile
    mutations   new contents of arguments that an operator writes to
    status      errors <-> google.rpc.Status
    v1          generated from proto/opdispatch/v1 by ``make protos``

    Tensors in memory that both ends of a lane share, from the bottom up:

    shared_mapping   address ranges over a memfd, and arrays in them
    memory_region    one sealed memfd: its owner's, and its receiver's
    free_extents     which parts of a region are free
    tensor_arena     the sender's regions, reused block by block
    peer_memory      the receiver's: arguments for a call, results until they are collected
    call_memory      both, as the two sides of one call use them
    shared_tensors   the tensors of a message that are in it

    Tensors in chunks on a gRPC stream, and beside the messages of a lane:

    chunks, blocking_outbox   cutting them, and what is sent when
    chunk_assembler           putting them together, within a budget
    caller_tensors            those of one call, as its caller sees them
    callee_tensors            those of one call, as its callee sees them
    tensor_bytes              arrays <-> their bytes, for both
    stream_tensors            those of the calls of one stream, for both of its calling sides
    blocking_stream, async_stream  these, for threads and for event loops
    stream_lane               who is at the other end of a stream
    detached_tensors          out of a message's bytes and back, without a copy
    protobuf_fields           the wire format, as far as that needs it

    The local lane:

    frames, frame_stream        its frames, and moving them in an event loop
    frame_outbox, frame_writer  writing them together, in threads
    lane_socket, lane_messages  its sockets, and the first words on it
    blocking_lane, async_lane   its calling side, for threads and for event loops
    lane_tensors                where the tensors of its calls are: in memory, or in frames
    brief_spin                  looking for the next frame before sleeping

Import from the modules. Nothing is imported here, so that ``errors`` stays cheap: the command
line needs it before it needs gRPC.
"""
