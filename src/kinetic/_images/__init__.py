"""What a job starts from: today this interpreter or an isolated environment, later the image of a container."""
