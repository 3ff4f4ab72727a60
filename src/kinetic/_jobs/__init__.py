"""One job: submitted, awaited, collected, found again."""
