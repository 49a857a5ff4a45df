"""Waiting and working inside the daemon's event loop.

wake_up     an event that wakes all who wait, each time
shielded    work that goes on when its caller has given up
slices      long work that lets other tasks run in between
"""
