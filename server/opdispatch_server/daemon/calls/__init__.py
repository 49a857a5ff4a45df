"""Calls and programs in the daemon: whose turn it is, where they go, what becomes of them.

kernel_choice, chosen_line         which kernel a call means, remembered for those like it
router, recovery, retry            forwards it, and again if its interpreter dies
alone_runs                         runs what may bring down its interpreter, with nothing else
fast_path                          calls that need no tasks of their own
replica_choice                     which interpreter takes it
program_plans, program_router,
interpreter_choice                 the same for programs
interpreter_queue, interpreter_queues,
queue_deadline                     whose turn it is in each interpreter, and who may wait
kernel_runs                        what is running, and its end if it takes too long
byte_budget                        the memory that large calls take in the daemon
profile_events                     what a profile says of it
"""
