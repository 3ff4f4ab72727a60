"""The decorated function."""
