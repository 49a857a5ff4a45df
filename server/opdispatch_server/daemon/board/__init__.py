"""The daemon's health, as probes and balancers see it.

health    grpc.health.v1: what can be called at the moment
"""
