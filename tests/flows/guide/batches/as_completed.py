for job in batch.as_completed():
    result = job.result()
    print(f"{job.job_id} finished: {result}")
