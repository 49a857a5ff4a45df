"""Built-in operators: the library ``array`` in array/, the library ``random`` in random/.

``opdispatch.array_library`` and ``opdispatch.random_library`` register them.
"""
