"""The wire: generated code, and the conversions that client and server share.

    errors      what the service raises on purpose, beside the dispatcher's own errors
    addresses   where a daemon listens: the forms that people write, and the default
    channel     options of channels and servers, message limits, protocol version
    dtypes      element types by their names
    tensors     arrays <-> v1.Tensor
    values      Python values <-> v1.Value
    calls       boxed calls <-> v1.CallRequest and v1.CallReply
    status      errors <-> google.rpc.Status
    frames, frame_stream, frame_writer    the local lane's frames, and moving them
    lane_socket, lane_messages            its sockets, and the first words on it
    blocking_lane, async_lane             its calling side, for threads and for event loops
    v1          generated from proto/opdispatch/v1 by ``make protos``

Import from the modules. Nothing is imported here, so that ``errors`` stays cheap: the command
line needs it before it needs gRPC.
"""
