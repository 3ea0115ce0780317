"""An app that runs beside another product, once with Celery's own retries and once with those of this package."""
