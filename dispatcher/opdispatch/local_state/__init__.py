"""State of the running task: key sets, guards, modes, traces.

operator                the interface of operators for lower layers
lazy_imports            functions of higher layers, imported on first call
caller_frames           the Python frames that called an operator
deprecation             warnings about deprecated names
trace_line              one line of a dispatch trace
call_observer           the observer of calls: a profiler
local_dispatch_key_set  the included and excluded keys
dispatch_trace          showing and capturing the steps of calls
observed_range          a block recorded by the task's observer
mode_decorator          modes as decorators
grad_mode               whether gradients are recorded
autocast_mode           whether autocast is enabled, and its dtypes
numpy_dtype_promotion   whether NumPy's rules of dtype promotion apply
torch_dispatch_mode     modes that intercept every call
tracing_state           the state of a running tracer
fake_impl               the context of a fake kernel
"""
