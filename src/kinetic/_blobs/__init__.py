"""Files on their way into a store and out of it, for projects and for data."""
