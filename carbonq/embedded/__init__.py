"""The embedded stack: a real broker and all carbonq processes on one machine, supervised and stopped in order."""
