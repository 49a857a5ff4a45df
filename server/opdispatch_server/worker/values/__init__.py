"""The tensors that an interpreter keeps for clients.

store, forms           the tensors themselves, and as arrays of which backend
device_moves           one on another device
device_exports, peers  from one interpreter to another, without the daemon
"""
