"""What `ntkdiag.watch` costs, by plan, by count of operations, and on the clock."""
