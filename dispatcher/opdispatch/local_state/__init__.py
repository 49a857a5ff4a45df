"""State of the running task: key sets, guards, modes, traces.

operator                what lower floors know of operators
lazy_imports            what lower floors call of higher ones, imported at the first call
caller_frames           the lines of Python that have called an operator
deprecation             warnings about names that a later version removes
trace_line              one step of a call, as it is shown
call_observer           observer of calls: a profiler
local_dispatch_key_set  keys that are included and excluded
dispatch_trace          showing and capturing the steps of calls
observed_range          a range of code for observers
mode_decorator          modes as decorators
grad_mode               whether gradients are recorded
autocast_mode           what autocast casts to
dtype_promotion         whose rules say which dtype a result has
torch_dispatch_mode     modes that see every call
tracing_state           what a tracer records in
fake_impl               the context of a fake kernel
"""
