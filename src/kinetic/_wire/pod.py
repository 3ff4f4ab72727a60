"""A pod's names: folders, files and variables that both sides know, and the exit codes by which a runner answers.

| exit code | what it means | what the cluster should do |
|---|---|---|
| 0 | the verdict is in the store | nothing: the Job is complete |
| FAILED_EXIT | the verdict "failed" is in the store, or this pod can never carry out the job | fail the Job at once |
| INFRASTRUCTURE_EXIT | no verdict: preempted, or the store is out of reach | start another pod |
| LOST_EXIT | the machine was restarted under the container: said by its runtime, never by us | start another pod |
| anything else | Python itself did not start, or was killed | fail the Job at once |
"""

from __future__ import annotations

FAILED_EXIT = 82
INFRASTRUCTURE_EXIT = 83  # the one code of ours that a podFailurePolicy does not answer with FailJob
LOST_EXIT = 255  # containerd's "Unknown", for what ran when its machine went down and came up again by itself

SECRET_FOLDER = "/kinetic/secret"  # noqa: S105 - a folder; its files are for root and one group (0440)
KEY_FILE = "job-key"  # the job's key, 32 raw bytes; for a batch those of all its children, one behind the other
STORE_SECRET_FOLDER = "/kinetic/store"  # noqa: S105 - the named Secret with credentials for the store
STORE_KEY_FILE = "credentials.json"  # of it: a key file of Google's
BUCKETS_FOLDER = "/kinetic/buckets"  # of an order's data, that with the number N is mounted at BUCKETS_FOLDER/N
ENVIRONMENT_FILE = "environment.json"  # captured values: {"NAME": "value"}; may be missing when there are none
LEFT_OUT = "left_out.json"  # in the folder of a pod's runner: the names of the modules that stay with the client
TERMINATION_LOG = "/dev/termination-log"  # Kubernetes shows what stands in it as the container's message

# Of these the first that holds a number says which host this is; Kubernetes sets it in every pod of an Indexed Job.
HOST_VARIABLES = ("JOB_COMPLETION_INDEX", "LWS_WORKER_INDEX", "TPU_WORKER_ID")
RESTART_VARIABLE = "JOBSET_RESTART_ATTEMPT"  # of several hosts: how often the whole set was started again
MORE_MEMORY = 'write resources = { memory = "32Gi" } under [tool.kinetic] in pyproject.toml, or ask for less at once'
DETECT = "detect"  # as a coordinator: JAX finds it by itself, as it does on TPU hosts of GKE
