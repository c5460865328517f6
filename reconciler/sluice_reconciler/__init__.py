"""Discovery, index backfill and enqueueing of accepted batches."""
