"""The operators that ship: those of the library ``array`` in array/, of ``random`` in random/.

``opdispatch.array_library`` and ``opdispatch.random_library`` register them.
"""
