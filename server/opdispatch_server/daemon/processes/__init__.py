"""The processes of interpreters: planned, started, watched, ended.

worker_plan                how many interpreters a daemon starts, and their devices
template                   the process from which interpreters are forked
worker_commands            the command lines that start them
launched_worker            one process of an interpreter
restart_policy             whether and when it is restarted
supervisor, worker_output  restarts interpreters that die, and logs their output
interpreter_pool           interpreters reserved for some libraries
"""
