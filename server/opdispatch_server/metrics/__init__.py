"""Counts of interpreters, which the daemon reads.

call_counts       the calls of each kernel, in memory that outlives the interpreter
"""
