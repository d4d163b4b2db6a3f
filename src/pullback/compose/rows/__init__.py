"""Rows: a program run a few of its rows at a time, so that its large middle is never whole."""
