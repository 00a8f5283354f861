"""Replay work on recorded grids in simulated time: what planning with the forecasts as issued would have saved.

It sits beside services and imports rules and words only: it reads files that a person names, never the store, a grid
source or a clock. Nothing ran for its figures, so every one of them says that it is simulated.
"""
