"""Submit a job, forget everything about it but its id, and collect it as another process would.

python examples/detached_job.py
"""

import kinetic


@kinetic.run(accelerator="cpu")
def count(words):
    """Count letters, slowly enough that its log can be followed."""
    total = 0
    for word in words:
        total += len(word)
        print(f"{word}: {total} letters so far", flush=True)
    return total


def main():
    job_id = count.run_async(["one", "three", "five"]).job_id
    print("submitted", job_id)

    job = kinetic.attach(job_id)  # in another script, or tomorrow: the id is enough
    print("it ended as", job.wait(timeout=60).value)
    print("the end of its log:", job.tail(1))
    print("its value:", job.result())


if __name__ == "__main__":
    main()
