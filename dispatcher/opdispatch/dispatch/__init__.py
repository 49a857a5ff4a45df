"""The dispatcher: what is registered, and which kernel a call reaches.

registration            one registration, and the handle that undoes it
registration_listener   callbacks for operators that come and go
dispatch_key_extractor  which key serves a call, and which bits it passes over
dispatch_table          which kernel wins
attribute_stores        how generated objects keep their attributes
operator_state          what an operator is, unchanging
operator_dump           an operator's tables as text
operator_entry          one operator, as it changes
call_watch              what watches a call
op_overload_names       the names that an operator has for users
missing_kernel          the errors of calls that no kernel serves
operator_handle         what calls an operator
inspection              what tools read of an operator
argument_source         generated lines for one argument
call_source             the generated text of a call
compiled_call           that text, compiled
signature_check         whether a kernel fits a schema
left_right              readers that never wait
name_table              operators by their names
transaction             several registrations at once
registry                all operators
wait_for_registration   waiting for an operator that is not there yet
similar_names           names that may have been meant
builtin_fallbacks       those that every dispatcher starts with
dispatcher              the face of all of it
"""
