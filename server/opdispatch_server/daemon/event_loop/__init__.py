"""Waiting and working inside the daemon's event loop.

changes     waiting until something is different
shielded    work that goes on when its caller has given up
slices      long work that lets other tasks run in between
"""
