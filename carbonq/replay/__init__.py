"""Replay recorded grids and arrivals in simulated time, and compare what policies would have emitted."""
