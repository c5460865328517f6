"""The rollup job: job, inputs, objects."""
