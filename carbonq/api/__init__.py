"""The HTTP API: shapes in, services called, problems out."""
