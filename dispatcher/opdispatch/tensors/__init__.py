"""The tensor class: its methods, operators and layouts.

generator        random number generators
indexing         x[...] and x[...] = value
operators        Python's operators, such as + and @
layouts          sparse, nested and quantized tensors
math_bits        lazy conjugation and negation
dimension_names  named dimensions
exchange         NumPy's protocols and DLPack
tensor           the tensor itself
layout_creation  creates sparse, nested and quantized tensors
"""
