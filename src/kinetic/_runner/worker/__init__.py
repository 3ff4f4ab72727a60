"""The process that runs the user's function: it rebuilds the project, calls, and delivers what became of it."""
