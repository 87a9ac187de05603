"""ntkdiag from a shell: each command calls one public function and prints what it returns."""
