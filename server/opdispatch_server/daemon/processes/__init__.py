"""The processes of interpreters: which there are, started, watched, ended.

worker_plan                which ones a daemon starts, and with which devices
template                   the one that its own are forked from
worker_commands            how they are started
supervisor, worker_output  its own: started again when they die, and what they print
interpreter_pool           the interpreters that some libraries use
"""
