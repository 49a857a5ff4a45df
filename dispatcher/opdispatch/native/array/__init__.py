"""The operators of the array API standard, with derivatives, batching and the other rules.

operators/        schemas and kernels
derivatives/      derivative formulas, reverse and forward mode
batching/         vmap's batching rules
autocast          autocast policies by device type
functionalization inverses that replay writes to views onto their bases
"""
