"""Places where jobs run."""
