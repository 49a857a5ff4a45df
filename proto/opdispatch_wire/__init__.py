"""The wire: generated code, and the conversions that client and server share.

    errors      what the service raises on purpose, beside the dispatcher's own errors
    addresses   where a daemon listens: the forms that people write, and the default
    channel     options of channels and servers, message limits, protocol version
    dtypes      element types by their names
    tensors     arrays <-> v1.Tensor
    values      Python values <-> v1.Value
    calls       boxed calls <-> v1.CallRequest and v1.CallReply
    status      errors <-> google.rpc.Status
    v1          generated from proto/opdispatch/v1 by ``make protos``

Import from the modules. Nothing is imported here, so that ``errors`` stays cheap: the command
line needs it before it needs gRPC.
"""
