"""What of kinetic's files is removed when, who removes it, and what is there now."""
