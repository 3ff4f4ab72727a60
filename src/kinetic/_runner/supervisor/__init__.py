"""What forks a worker, watches it, and says what became of its job; see supervise.py."""
