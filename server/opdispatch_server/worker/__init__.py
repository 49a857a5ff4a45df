"""An interpreter: a process of its own (``opdispatch worker``, or started by the daemon).

interpreter_start, interpreter_process      its main function
environment_bootstrap                       runs it where opdispatch need not be installed
template_process                            what the daemon's own are forked from
interpreter, heartbeat,
returning_interpreter                       the session with the daemon, and the next one
lost_device                                 the end of one whose device has failed
running_code                                which code a log record comes from

Each folder imports from those below it:

incoming/                                   calls that come, from the daemon and from clients
execution/                                  running kernels and programs
libraries/                                  the libraries that it holds, and whose turn it is
values/                                     the tensors that it keeps for clients
"""
