"""The operators of the array API standard, with derivatives, batching and the other rules.

operators/        schemas and kernels
derivatives/      how they are differentiated
batching/         how vmap batches them
autocast          what autocast casts for them
functionalization what writes to views of theirs come to
"""
