"""Calls and programs in the daemon: whose turn it is, where they go, what becomes of them.

call_lanes, byte_budget                over local lanes, with the memory that they take
call_chooser, chosen_line              which kernel a call means, remembered for those like it
call_router, call_recovery, repeats    forwards it, and again if its interpreter dies
alone_runs                             runs what may bring down its interpreter, with nothing else
quick_calls                            those that need no tasks of their own
program_plans, program_router          the same for programs
interpreter_gate, admission            whose turn it is in each interpreter, and who may wait
kernel_runs                            what is running, and its end if it takes too long
direct_routes                          how clients reach interpreters themselves
daemon_events                          what a profile says of it
"""
