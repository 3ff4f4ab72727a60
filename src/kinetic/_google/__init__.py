"""Google's services over REST, and who we are to them. Owns google-auth."""
