"""The schema language: the signatures of operators.

scalar_type      element types
types            the types of arguments and results
operator_name    the names of operators, and their grammar
argument         arguments and returns
function_schema  a schema: a name, arguments and returns
default          default values
lexer            text as tokens
type_parser      tokens as types
parser           text as a schema
tag              properties of an operator beyond its schema
tag_checks       checks of tags against the schema
compatibility    whether a schema can replace an older one
"""
