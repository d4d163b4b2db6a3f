"""Capture: a program becomes units with data flow, units become one joint graph."""
