"""The daemon's health, as probes and balancers see it.

health    grpc.health.v1: which services, libraries and interpreters serve calls
"""
