"""An interpreter: a process of its own (``opdispatch worker``, or started by the daemon).

interpreter_start, interpreter_process      its main function
environment_bootstrap                       runs it where opdispatch need not be installed
template_process                            what the daemon's own are forked from
interpreter, heartbeat,
returning_interpreter                       the session with the daemon, and the next one
interpreter_libraries, loaded_library       the libraries that it holds
lost_device                                 the end of one whose device has failed

Kernels and programs are run:

kernel_execution, chosen_kernel,
raised_errors, kernel_error_log, result_lengths,
kernel_profile                              kernels, what they raise, and what they take
compiled_program, program_execution         programs
library_fetch                               files of libraries, from a daemon on another machine
running_code                   which code a log record comes from
unloaded_code                  memory of libraries that have gone, while a call still ends
library_turns, several_turns, waiting_room  whose turn it is in a library
daemon_lane                                 the calls that kernels make to other interpreters

Calls come:

call_rules                                  which of them may run
kernel_lanes, kernel_lane,
turn_watch                                  over local lanes
kernel_streams, kernel_calls,
kernel_threads                              over gRPC
direct_calls, direct_listener               from clients themselves, past the daemon
"""
