"""The runner as it runs inside a container: one process that keeps one worker, and speaks through the store."""
