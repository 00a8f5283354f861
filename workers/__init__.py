"""Celery worker processes: region and control. Thin; the work is in ``carbonq.services``. Relative imports only."""
