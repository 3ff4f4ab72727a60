"""This machine: a queue, supervisors that carry out what is queued, and locks that tell who is alive."""
