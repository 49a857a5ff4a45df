"""``opcheck``: tests whether a custom operator behaves as its registrations declare.

Mirrors ``torch/testing/_internal/optests``. From the bottom up::

    sample                     sample arguments, and comparison of results
    schema_check               checks mutation and aliasing against the schema
    autograd_registration      checks the dispatch key of the derivative
    fake_tensor                compares results for fake and real tensors
    aot_autograd               compares results under functionalization and tracing
    opcheck                    runs all checks
"""
