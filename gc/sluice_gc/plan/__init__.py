"""A plan of deletions, made from a certificate: plan, planner, plan_candidates."""
