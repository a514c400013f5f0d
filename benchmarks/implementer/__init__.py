"""How fast, for how much, and how surely ideas become codebases."""
