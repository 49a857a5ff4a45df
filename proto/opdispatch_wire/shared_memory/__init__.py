"""Tensors in memory that both ends of a lane share, from the bottom up.

shared_mapping              address ranges mapped to a memfd, and arrays in them
memory_region               one sealed memfd, for its owner and its receiver
free_extents, arena_block   the free parts of a region, and a block in use
memory_budget               a limit on the bytes of several senders together
tensor_arena                the sender's regions, reused block by block
peer_memory                 the receiver's view: arguments for a call, results until collected
shared_tensors              finds the tensors of a message that are in shared memory
call_memory                 everything that the two sides of one call need
"""
