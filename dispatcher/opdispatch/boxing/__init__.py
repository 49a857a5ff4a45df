"""Kernels, boxed and unboxed, and the conversion of their arguments and results.

basic_conversion     exact conversions of Python values to schema types
argument_conversion  conversions to every schema type
read_only_arguments  arguments that a kernel must not write to
named_results        named tuples for results
signature            binds arguments to a schema
generated_source     compiles generated source, with lines in tracebacks
boxing               adapters between stacks and arguments
kernel_operator      the operator interface that kernels use
kernel_function      a kernel, callable boxed and unboxed
"""
