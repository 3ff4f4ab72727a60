"""What every place on Kubernetes shares: manifests, a client, and reading what the cluster says."""
