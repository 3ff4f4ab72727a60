# Each child is cleaned up as its result is downloaded
results = batch.results()  # cleanup=True is the default
