"""How data arrives in a job: fetched, verified, kept for the next job, and given to this one alone."""
