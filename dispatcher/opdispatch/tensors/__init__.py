"""The tensor, and what it can do.

generator        random numbers, and where they come from
indexing         x[...] and x[...] = value
operators        the operators of Python
layouts          sparse, nested and quantized tensors
math_bits        conjugates and negatives that are not computed yet
names            named dimensions
exchange         other libraries' protocols
tensor           the tensor itself
layout_creation  functions that make tensors of other layouts
"""
