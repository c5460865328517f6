"""Full passes over `accepted/`, and the quicker scanners that find most batches before them."""
