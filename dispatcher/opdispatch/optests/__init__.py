"""``opcheck``: whether an operator of one's own is what its registrations say.

Mirrors ``torch/testing/_internal/optests``. From the bottom up::

    sample                     arguments to try an operator with, and what came of it
    schema_check               what it writes to and shares memory with
    autograd_registration      where its derivative is registered
    fake_tensor                what it returns for tensors without elements
    aot_autograd               what it does as a part of programs that are transformed
    opcheck                    all of these
"""
