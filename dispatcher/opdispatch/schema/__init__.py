"""The schema language: what an operator takes and returns.

scalar_type      element types
types            the types of arguments and results
operator_name    the names of operators, and their grammar
argument         arguments and returns
function_schema  a schema: a name, arguments and returns
default          default values
lexer            text as tokens
type_parser      tokens as types
parser           text as a schema
tag              what an operator is said to be
tag_checks       which tags a schema can have
compatibility    whether a schema can stand for an older one
"""
