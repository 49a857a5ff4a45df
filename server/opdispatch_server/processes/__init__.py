"""The processes of interpreters: which there are, started, watched, ended.

worker_plan                           which ones a daemon starts, and with which devices
template                              the one that its own are forked from
worker_commands                       how they are started
supervisor, worker_output             its own: started again when they die, and what they print
process_watch, parent_watch           the end of one, noticed at once: by the daemon, by a child
process_memory                        how much memory one has
interpreter_pool, interpreter_pools   those that only some libraries may use
"""
