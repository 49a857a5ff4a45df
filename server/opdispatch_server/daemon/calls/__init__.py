"""Calls and programs in the daemon: whose turn it is, where they go, what becomes of them.

kernel_choice, chosen_line         which kernel a call means, remembered for those like it
router, recovery, retry            forwards it, and again if its interpreter dies
alone_runs                         runs what may bring down its interpreter, with nothing else
fast_path                          calls that need no tasks of their own
relay_plan                         of these, those that are passed on by their constant bytes
replica_choice                     which interpreter takes it
program_plans, program_router,
interpreter_choice                 the same for programs
interpreter_queue, interpreter_queues,
queue_deadline                     whose turn it is in each interpreter, and who may wait
kernel_run, kernel_runs            one kernel that runs for a call, and all of them
kernel_timeout                     the end of those that run too long
lost_replies                       the errors of calls whose interpreter has died, or is busy
quotas                             how much of all of it one identity may use
kernels_only                       those that kernels of joined interpreters make
byte_budget                        the memory that large calls take in the daemon
profile_events                     what a profile says of it
"""
