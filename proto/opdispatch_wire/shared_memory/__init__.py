"""Tensors in memory that both ends of a lane share, from the bottom up.

shared_mapping              address ranges over a memfd, and arrays in them
memory_region               one sealed memfd: its owner's, and its receiver's
free_extents, arena_block   which parts of a region are free, and one that is not
memory_budget               how many bytes several senders may have together
tensor_arena                the sender's regions, reused block by block
peer_memory                 the receiver's: arguments for a call, results until they are collected
shared_tensors              the tensors of a message that are in it
call_memory                 both, as the two sides of one call use them
"""
