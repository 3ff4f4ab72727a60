"""This machine: a queue, keepers that carry out what is queued, and locks that tell who is alive."""
