"""The command line: data on stdout, messages on stderr, exit status 0, 1 or 2."""
