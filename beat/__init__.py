"""The clock process: Celery beat with a schedule of ticks, nothing else. Relative imports only."""
