"""Values that interpreters keep for clients, as the daemon knows them.

table          which there are, and where
remote_part    those that one call uses, and those that it keeps
"""
