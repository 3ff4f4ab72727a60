"""Looking into a job that runs: its debugger, a way to its ports, its shell, its stacks."""
