"""Words that client and runner share; standard library only."""
