"""Built-in modes: fake tensors, deferred initialization, FLOP counting and call logging.

fake_tensor     tensors with shapes but without elements
deferred_init   modules that are initialized later
operator_flops  FLOP formulas of the library ``array``
flop_counter    counts floating-point operations
logging_mode    logs operator calls
"""
