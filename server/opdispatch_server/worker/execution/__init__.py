"""Running kernels and programs in an interpreter.

kernels, programs, compiled_program   run the kernel or program that a call names
daemon_lane                           calls by kernels to other interpreters
caller_state                          the modes in which a kernel runs: its caller's
call_accounting, slow_call_log        counts every run; logs slow ones
raised_errors, kernel_error_log       converts and logs the errors that kernels raise
result_lengths                        checks the size of results before encoding
kernel_call, recorded_runs            calling one kernel; recording each run
kernel_plan, epoch_plans              plans for similar calls, and the plans of one epoch
planned_kernels                       running the kernels of planned calls
planned_keeps                         results of direct calls that are kept
kernel_profile                        the profile of one call
"""
