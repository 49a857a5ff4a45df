"""Calls and programs in the daemon: queued, routed, retried and bounded.

kernel_choice, trace_line          the kernel that a call selects, cached; its trace
router, wait_for_ready, retry      forward a call, and again if its interpreter dies
alone_runs                         run suspected operators alone in an interpreter
fast_path                          calls that need no tasks of their own
relay_plan                         quick calls that are forwarded by their constant bytes
replica_choice                     which interpreter a call goes to
program_plans, program_router,
program_interpreter_choice         the same for programs
interpreter_queue, interpreter_queues,
queue_deadline                     the queue of each interpreter, and its limits
kernel_run, kernel_runs            one running kernel, and all of them
nested                             calls that kernels make: authorization, depth and number
kernel_timeout                     stops kernels that run too long
lost_replies                       errors of calls whose interpreter died or is busy
quotas                             how much one identity may use of each resource
joined_interpreters                limits joined interpreters to calls by their kernels
byte_budget                        the memory that large calls occupy in the daemon
profile_events                     the daemon's events in a profile
"""
