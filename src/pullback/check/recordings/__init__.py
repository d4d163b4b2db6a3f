"""Real inputs: those that a program calls its Functions with, kept, stored and read again."""
