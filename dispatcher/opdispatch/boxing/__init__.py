"""Kernels, boxed and unboxed, and the values that they are called with.

basic_conversion     Python's values as those of a schema, where they are exact
argument_conversion  the same for every type
read_only_arguments  arguments that a kernel must not write to
named_results        results that have names
signature            arguments bound to a schema
generated_source     source text, compiled, with lines in tracebacks
boxing               adapters between stacks and arguments
kernel_operator      what a kernel is fitted to
kernel_function      a kernel that can be called both ways
"""
