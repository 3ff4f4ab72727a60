"""Inside the job: what carries out an Order and leaves an Outcome."""
