"""Many jobs behind one handle."""
