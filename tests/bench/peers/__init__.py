"""Peers of the data plane. Each file is a program that any Python can run.

It says "ready" on its stdout, and then answers each line of its stdin, a JSON list, with the
seconds that it took: ``["calls", ELEMENTS, COUNT]`` is so many additions of two float32 arrays, one
after the other, and ``["in flight", COUNT, IN_FLIGHT]`` those of arrays of 4 elements, so many at
a time. A peer that cannot do one of them answers null.
"""
