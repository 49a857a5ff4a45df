"""The tensors that an interpreter keeps for clients.

store, forms           the tensors themselves, and as arrays of which backend
direct_keeps           those of which the daemon has not heard yet
device_moves           one on another device
device_exports, peers  from one interpreter to another, without the daemon
"""
