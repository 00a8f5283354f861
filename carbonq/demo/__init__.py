"""The demonstration: the real stack, two real jobs on a recorded grid, and a check of everything it claims."""
