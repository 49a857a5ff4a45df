"""Values kept in interpreters for clients, as the daemon knows them.

table            all values, and their interpreters
identity_quota   the limit for all sessions of an identity
direct_keeps     values kept by direct calls, which the daemon has to ask for
grants           how many values direct calls may keep
remote_part      the values that one call uses and keeps
"""
