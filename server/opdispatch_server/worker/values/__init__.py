"""The tensors that an interpreter keeps for clients.

store, backend_forms   the tensors, and the backends of their arrays
direct_keeps           values kept by direct calls, unknown to the daemon so far
device_moves           moving values to another device
device_exports, peers  transfers between interpreters, without the daemon
"""
