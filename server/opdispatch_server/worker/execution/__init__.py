"""Running kernels and programs in an interpreter.

kernels, programs, compiled_program   what a call names, run
daemon_lane                           the calls that kernels make to other interpreters
caller_state                          what a kernel finds switched on
call_accounting, slow_call_log        every run, counted; those that took long
raised_errors, kernel_error_log       what kernels raise
result_lengths                        how long a reply may be
kernel_call, recorded_runs            one kernel's call and its errors; each run, on record
kernel_plan, planned_kernels          the kernel of calls that are alike, and their replies
planned_keeps                         the results of direct calls that stay
kernel_profile                        what they take
"""
