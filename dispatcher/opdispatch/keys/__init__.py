"""Dispatch keys, and sets of them.

dispatch_key      the keys, in order of priority
dispatch_key_set  sets of keys as one integer
"""
