"""The libraries that an interpreter holds, and whose turn it is in each.

instructions, loaded                all of them, as the daemon instructs, and one
fetch                               files of libraries, from a daemon on another machine
chosen_kernel                       the kernel that a call names, ready to be called
unloaded_code                       memory of those that have gone, while a call still ends
turns, several_turns, queue_space   whose turn it is
"""
