# At most 8 jobs running at once
batch = train.run_async_map(configs, max_concurrent=8)
# Submit all jobs immediately (no concurrency limit)
batch = train.run_async_map(configs, max_concurrent=None)
