"""What people read: messages on standard error, text for people, and tracebacks."""
