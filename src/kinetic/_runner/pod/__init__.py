"""The runner inside a container: one process that supervises one worker, and communicates through the store."""
