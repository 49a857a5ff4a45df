"""Values that interpreters keep for clients: remote tensors.

In the daemon:

remote_value_table             which there are, and where
value_leases                   the streams on which clients hold them
remote_part                    those that one call uses, and those that it keeps
device_holders                 which interpreters can have which devices

In an interpreter:

value_store, stored_value      the tensors themselves
device_moves                   a value on another device
device_exports, peer_values    from one interpreter to another, without the daemon
"""
