"""The `calibrant` command: each command parses, calls the function of the same name, and prints.

stdout carries data, stderr progress and errors. Exit codes: 0 done, 1 failed (the last line on stderr says why), 2 usage.
"""
