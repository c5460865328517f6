"""The ingest job, from the queue to the tables: job, microbatch, exactly_once, write_tasks."""
