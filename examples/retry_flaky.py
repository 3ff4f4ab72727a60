"""Run many inputs of which some fail: retries, results in order, and the failures one by one.

python examples/retry_flaky.py
"""

import os

import kinetic


@kinetic.run(accelerator="cpu")
def fetch(number):
    """Fail once for odd numbers, and always for 4."""
    first = os.path.join(kinetic.output_dir(), "tried")
    if number == 4:
        raise ValueError("4 never works")
    if number % 2 and not os.path.exists(first):
        with open(first, "w") as file:
            file.write("yes")
        raise ConnectionError("try again")
    return number * 10


def main():
    batch = fetch.run_async_map(range(6), retries=1, name="flaky", max_concurrent=4)
    for number, value in enumerate(batch.results(return_exceptions=True, cleanup=False)):
        print(number, "failed:" if isinstance(value, BaseException) else "gave", value)
    print("failed jobs:", [job.group_index for job in batch.failures()])
    batch.cleanup()


if __name__ == "__main__":
    main()
