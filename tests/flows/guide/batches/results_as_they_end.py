losses = batch.results(ordered=False)
# Results appear in the order jobs finish, not input order
