"""Values that interpreters keep for clients, as the daemon knows them.

table            which there are, and where
identity_quota   how many one identity may keep in all of its sessions
remote_part      those that one call uses, and those that it keeps
"""
