"""The libraries that an interpreter holds, and the queue of each.

instructions, loaded                carry out the daemon's instructions; one loaded library
staging                             imports a version, and rolls back what it registers
fetch                               fetches library files from a daemon on another machine
chosen_kernel                       the kernel that a call names, ready to be called
unloaded_code                       frees the memory of unloaded libraries
turns, several_turns, queue_space   queues of calls for each library
"""
