"""Calls watched from outside: operators, what is saved, written and left behind."""
