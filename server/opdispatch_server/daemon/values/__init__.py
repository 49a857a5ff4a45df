"""The daemon's records of the values that interpreters keep for clients.

table            all values, and their interpreters
identity_quota   the limit for all sessions of an identity
direct_keeps     values kept by direct calls, which interpreters report on request
grants           limits on the values that direct calls may keep
remote_part      the values that one call uses and keeps
"""
