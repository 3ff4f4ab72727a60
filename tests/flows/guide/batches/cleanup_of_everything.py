batch.cleanup(k8s=True, gcs=True)
