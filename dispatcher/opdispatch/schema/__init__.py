"""The schema language: what an operator takes and returns.

scalar_type      element types
types            the types of arguments and results
function_schema  a schema with its arguments
default          default values
lexer            text as tokens
type_parser      tokens as types
parser           text as a schema
tag              what an operator is said to be
tags             which tags a schema can have
compatibility    whether a schema can stand for an older one
"""
