"""What a cluster for jobs consists of in a Google Cloud project, and how it is made, compared and removed."""
