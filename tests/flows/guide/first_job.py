import kinetic

@kinetic.run(accelerator="tpu-v5e-1")
def train_model():
    # Long-running training code
    return {"final_loss": 0.123}

job = train_model.run_async()
print(f"Submitted: {job.job_id}")

# ... do something else, possibly close the script entirely ...

final = job.result(timeout=3600) # blocks until done
print(final)
