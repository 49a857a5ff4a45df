"""Waiting and working inside the daemon's event loop.

wake_up     wakes all waiters, at each change
shielded    work that continues when its caller gives up
slices      long work in slices, between which other tasks run
"""
