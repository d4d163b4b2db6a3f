"""The command line: one file per command, found by walking this package."""
