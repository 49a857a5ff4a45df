"""The wire: generated code, and the conversions that client and server share.

    errors      errors of the service, besides the dispatcher's own
    kernel_errors  kernel exceptions, with their built-in classes
    resource_limits  system errors that mean an exhausted resource
    printable   untrusted text, made safe for terminals and logs
    addresses, address_forms   where a daemon listens: accepted forms, the default
    socket_owner  which user's process listens at a unix socket
    channel     options of channels and servers
    message_size  the limit on messages, and its checks
    protocol_version  the version of the protocol
    asyncio_grpc  asyncio servers and channels whose events never stall
    client_identity  a client's name, for listings and logs
    credentials, secured_channel,
join_token                    a client's credentials
    dtypes      element types by name
    tensors     arrays <-> v1.Tensor
    layouts     tensors of layouts other than strided
    remote_values  tensors that stay in an interpreter <-> v1.RemoteTensor
    values      Python values <-> v1.Value
    nesting_limits  how deep lists and dicts may be nested
    packed_numbers  long lists of numbers <-> Value.packed
    generators  generators <-> v1.GeneratorState
    modes       a task's modes <-> v1.CallRequest
    calls       boxed calls <-> v1.CallRequest and v1.CallReply
    received_call  a received call, with its detached tensors
    plain_calls  fast paths for calls with only plain arrays
    planned_calls  messages of similar calls, by their constant bytes
    plan_table  plans that a process keeps for its callers
    planned_requests, planned_replies,
variable_parts, shared_leaves   constant and variable parts of each kind of message
    programs    programs as messages, checked before they run
    trace_context  spans of distributed traces
    profiles    profiles of calls <-> v1.Profile
    mutations   new contents of arguments that an operator writes to
    status      errors <-> google.rpc.Status
    library_source, requirements_file   a library and its requirements, as an upload
    library_content                     the files of a library, in chunks
    v1          generated from proto/opdispatch/v1 by ``make protos``

    The elements of large tensors:

    process_memory_limit      how much memory this process may use
    shared_memory/            in memory shared by both ends of a lane
    chunks                    or outside messages, in chunks
    tensor_bytes              or outside messages: arrays <-> their bytes
    caller_tensors            the tensors of one call, on the caller's side
    callee_tensors            the tensors of one call, on the callee's side
    detached_tensors          detached from a message and attached, without a copy
    protobuf_fields           the wire format, as far as needed for that

    lanes/      connections that carry calls: gRPC streams, and local lanes

Import from the modules. Nothing is imported here, so that ``errors`` stays cheap: the command
line needs it before it needs gRPC.
"""
