"""Run any program as a job: a script of yours that knows nothing of kinetic, and a shell command.

    python examples/command_jobs.py

The same from a terminal: kinetic run -- python -c '…', and a sweep: kinetic run --sweep lr=0.1,0.2 -- python train.py.
"""

import kinetic

PROGRAM = """
import os, sys
rate = float(sys.argv[1])
with open(os.path.join(os.environ["KINETIC_OUTPUT_DIR"], "loss.txt"), "w") as file:
    file.write(str(rate ** 2))
print("trained with", rate)
"""

if __name__ == "__main__":
    jobs = [kinetic.run_command(["python", "-c", PROGRAM, rate], name="train") for rate in ("0.1", "0.2")]
    for job in jobs:
        code = job.result()  # 0; a command that fails raises kinetic.errors.CommandError
        with open(f"{job.output_dir}/loss.txt") as file:
            print(job.job_id, "ended with", code, "and wrote", file.read())

    failing = kinetic.run_command(["sh", "-c", "exit 3"], retries=1)
    try:
        failing.result()
    except kinetic.errors.CommandError as error:
        print(error.what, "-", failing.status().value)
