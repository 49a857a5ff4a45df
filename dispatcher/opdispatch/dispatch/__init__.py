"""The dispatcher: the registrations of operators and kernels, and the dispatch of calls.

registration            one registration, and the handle that undoes it
registration_listener   callbacks for operators that are defined or removed
dispatch_key_extractor  the key that serves a call; fallthrough masks
dispatch_table          which kernel serves a key, and why
attribute_stores        stores to several attributes at one instant
operator_state          one operator as an immutable snapshot
operator_dump           an operator's tables as text
operator_entry          the registrations of one operator
observed_call           traces and observes a call
op_overload_names       the attributes of PyTorch's OpOverload
missing_kernel          errors for calls without a kernel
operator_handle         an operator as callers hold it
inspection              queries about an operator, for tools
argument_source         generated lines for one argument
call_source             the generated source of a call
compiled_call           compiles that source for each schema
signature_check         whether a kernel fits a schema
duplicate_definition    which registrations may be made twice
left_right              two copies of a value, for lock-free readers
name_table              operators by their names
transaction             several registrations in one publication
registry                all operators
wait_for_registration   waiting for an operator or kernel
similar_names           suggestions for misspelt names
builtin_fallbacks       the fallbacks that every dispatcher starts with
dispatcher              the interface to all of it
"""
