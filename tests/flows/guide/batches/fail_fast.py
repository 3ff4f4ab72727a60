# Stop the batch as soon as any job fails, cancel all running siblings
batch = train.run_async_map(
    configs,
    fail_fast=True,
    cancel_running_on_fail=True,
)
