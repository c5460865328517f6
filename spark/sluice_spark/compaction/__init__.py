"""The compaction job, and what it merges, rewrites and removes: job, file_selection, rewrite."""
