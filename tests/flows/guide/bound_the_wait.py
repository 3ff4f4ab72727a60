try:
    final = job.result(timeout=3600)
except TimeoutError:
    # Job is still running — handle is still valid; you can call .result()
    # again, .tail(), .cancel(), or just walk away.
    print(job.tail(n=50))
