"""Google's services over REST, with our credentials. Owns google-auth."""
