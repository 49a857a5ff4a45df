"""Values that interpreters keep for clients, as the daemon knows them.

table            which there are, and where
identity_quota   how many one identity may keep in all of its sessions
direct_keeps     those of which it hears when it asks
grants           how many of those there may be
remote_part      those that one call uses, and those that it keeps
"""
