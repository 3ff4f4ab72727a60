for job in batch.failures():
    print(f"{job.job_id}: {job.tail(n=20)}")
