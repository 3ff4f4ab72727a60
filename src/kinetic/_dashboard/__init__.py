"""The dashboard: a page on this machine that shows jobs and batches, live."""
