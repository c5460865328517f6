"""The run of a plan, blob by blob with a proof: plan_runner, deletion_proof, cycle."""
