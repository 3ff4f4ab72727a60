for j in kinetic.list_jobs():
    print(f"{j.job_id} {j.func_name} {j.status().value}")
