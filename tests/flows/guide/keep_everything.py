final = job.result(cleanup=False) # keep everything
job.cleanup(k8s=True, gcs=False) # later: delete pod, keep artifacts
