"""Test code that submits jobs, without starting a process: an hour of training takes milliseconds.

python examples/test_with_fake.py     # or: pytest examples/test_with_fake.py
"""

import tempfile

import kinetic.testing


@kinetic.run(accelerator="tpu-v5e-8")
def train(rate):
    return 1 - rate


def best(rates):
    """Return the best of some rates: the code under test."""
    losses = train.run_async_map(rates).results()
    return min(zip(losses, rates, strict=True))[1]


def test_the_best_rate_is_found():
    slow = kinetic.testing.FakeBackend(running_seconds=3600)
    with tempfile.TemporaryDirectory() as folder, kinetic.testing.fake_backend(folder, slow) as backend:
        begun = backend.clock.time()

        assert best([0.1, 0.3, 0.2]) == 0.3

        assert backend.clock.time() - begun >= 3600


if __name__ == "__main__":
    test_the_best_rate_is_found()
    print("passed: three jobs of an hour each")
