"""Modes that ship: fake tensors, deferred initialization, counting operations, logging calls.

fake_tensor     shapes without elements
deferred_init   modules whose elements come later
operator_flops  how many operations an operator takes
flop_counter    counting them
logging_mode    showing calls
"""
