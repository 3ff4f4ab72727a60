"""Find good hyper-parameters for a small network on handwritten digits: twelve trainings, each of them a job.

    python examples/sweep.py

The digits come with scikit-learn, so nothing is downloaded. Press Ctrl-C, or kill it: the trainings that were submitted
keep running, and this command continues the sweep:

    python examples/sweep.py grp-a1b2c3d4
"""

import itertools
import os
import pickle
import sys

import kinetic

SETTINGS = [
    {"rate": rate, "width": width, "penalty": penalty}
    for rate, width, penalty in itertools.product([0.0003, 0.003, 0.03], [16, 64], [0.0001, 0.1])
]


@kinetic.run(accelerator="cpu")
def train(rate, width, penalty):
    """Train one network, keep it in the output folder, and return how good it is. All of it runs in the job."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    digits = load_digits()  # 1,797 grey pictures of 8 by 8 pixels, values 0 to 16
    seen, unseen, seen_labels, unseen_labels = train_test_split(
        digits.data / 16.0, digits.target, test_size=360, random_state=0, stratify=digits.target
    )
    model = MLPClassifier((width,), learning_rate_init=rate, alpha=penalty, random_state=0)
    for epoch in range(20):
        model.partial_fit(seen, seen_labels, classes=range(10))
        print(f"epoch {epoch}: loss {model.loss_:.4f}", flush=True)

    kept = os.path.join(kinetic.output_dir(), "model.pkl")  # files there are kept after the job
    with open(kept, "wb") as file:
        pickle.dump(model, file)
    return {"accuracy": float(model.score(unseen, unseen_labels)), "model": kept}


def main():
    if len(sys.argv) > 1:
        batch = kinetic.attach_batch(sys.argv[1], resume=True)
    else:
        batch = train.run_async_map(SETTINGS, name="digits", retries=1, max_concurrent=8)
        print(f"{len(batch.jobs)} trainings: {batch.group_id}", flush=True)

    # cleanup=False keeps the jobs and their logs: the sweep can be attached and looked at later.
    found = batch.results(return_exceptions=True, cleanup=False)

    tried = list(zip(SETTINGS, found, strict=True))
    good = [pair for pair in tried if not isinstance(pair[1], Exception)]
    good.sort(key=lambda pair: pair[1]["accuracy"], reverse=True)
    for setting, result in good:
        print(
            f"{result['accuracy']:6.1%}  rate {setting['rate']:<6}  width {setting['width']:<2}  {setting['penalty']}"
        )
    for setting, error in tried:
        if isinstance(error, Exception):
            print(f"failed  {setting}: {error}")
    if good:
        print(f"the best model: {good[0][1]['model']}")
    print(f"when you are done: kinetic batch cleanup {batch.group_id}")


if __name__ == "__main__":
    main()
