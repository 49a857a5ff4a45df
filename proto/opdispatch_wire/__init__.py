"""The wire: generated code, and the conversions that client and server share.

    errors      errors of the service, besides the dispatcher's own
    kernel_errors  kernels' exceptions, of the built-in classes that they have
    resource_limits  errors of the system that mean that something has run out
    printable   text of unknown origin, as a terminal or a log may show it
    addresses, address_forms   where a daemon listens: the forms that people write, the default
    socket_owner  whose process listens at a unix socket
    channel     options of channels and servers, message limits
    protocol_version  which version of the protocol this is
    asyncio_grpc  servers and channels for asyncio, in which a busy loop hears of all that comes
    client_identity  how a client says who it is
    credentials, secured_channel,
join_token                    what it shows to be let in
    dtypes      element types by their names
    tensors     arrays <-> v1.Tensor
    layouts     tensors of other layouts than the dense one
    remote_values  tensors that stay in an interpreter <-> v1.RemoteTensor
    values      Python values <-> v1.Value
    nesting     how deep lists and dicts may lie in each other
    packed_numbers  long lists of numbers <-> Value.packed
    generators  generators <-> v1.GeneratorState
    modes       what a task has switched on <-> v1.CallRequest
    calls       boxed calls <-> v1.CallRequest and v1.CallReply
    received_call  a call as it came, with its detached tensors
    plain_calls  the same, of plain arrays alone, in one step each
    planned_calls  messages of calls that are alike, by the bytes that they share
    plan_table  plans that a process keeps for those who send them
    planned_requests, planned_replies,
variable_parts, shared_leaves   of each kind, what is constant; what differs
    programs    programs as messages: what is checked before anything of one runs
    trace_context  spans of distributed traces
    profiles    what calls took <-> v1.Profile
    mutations   new contents of arguments that an operator writes to
    status      errors <-> google.rpc.Status
    library_source, requirements_file   a library and what it needs installed, as an upload
    library_content                     the files of a library, in chunks
    v1          generated from proto/opdispatch/v1 by ``make protos``

    Where the elements of large tensors are:

    process_memory_limit      how much memory this process may use
    shared_memory/            in memory that both ends of a lane share
    chunks                    or beside messages, large ones cut into pieces
    tensor_bytes              or beside messages: arrays <-> their bytes
    caller_tensors            those of one call, as its caller sees them
    callee_tensors            those of one call, as its callee sees them
    detached_tensors          out of a message's bytes and back, without a copy
    protobuf_fields           the wire format, as far as that needs it

    lanes/      connections on which calls travel: gRPC streams, and local lanes

Import from the modules. Nothing is imported here, so that ``errors`` stays cheap: the command
line needs it before it needs gRPC.
"""
