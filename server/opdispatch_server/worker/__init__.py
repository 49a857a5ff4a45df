"""An interpreter: a process of its own (``opdispatch worker``, or started by the daemon).

interpreter_start, interpreter_process      the main function
environment_bootstrap                       runs it in environments without opdispatch
template_process                            the process from which the daemon forks interpreters
interpreter, interpreter_settings,
heartbeat, returning_interpreter            the session with the daemon, and reconnecting
registrar                                   the daemon's instructions, carried out in order
lost_device                                 the end of an interpreter whose device has failed
kernel_log_filter                           the kernel that a log record comes from

Each folder imports from those below it:

incoming/                                   calls received from the daemon and from clients
execution/                                  running kernels and programs
libraries/                                  the libraries that it holds, and their queues
values/                                     the tensors that it keeps for clients
"""
