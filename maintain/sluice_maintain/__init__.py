"""One process that schedules and runs the maintenance of a store."""
