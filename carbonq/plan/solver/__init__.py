"""How chunks are placed: an exact flow, prices for long chunks, bounds, repair. Pure arrays."""
